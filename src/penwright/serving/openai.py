"""OpenAI's interface for completions, as its clients know it."""

from fastapi import APIRouter

router = APIRouter()
