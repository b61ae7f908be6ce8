"""What the page needs to write, token by token."""

from fastapi import APIRouter

router = APIRouter()
