"""Labels for texts."""

from fastapi import APIRouter

router = APIRouter()
