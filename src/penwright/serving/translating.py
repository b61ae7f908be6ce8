"""What the page needs to translate."""

from fastapi import APIRouter

router = APIRouter()
