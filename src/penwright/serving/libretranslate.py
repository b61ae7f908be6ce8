"""LibreTranslate's interface, as its clients know it."""

from fastapi import APIRouter

router = APIRouter()
