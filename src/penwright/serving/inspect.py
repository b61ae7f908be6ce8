"""What the page shows of the inside of a model."""

from fastapi import APIRouter

router = APIRouter()
