"""Whether the server is ready, and what it has done."""

from fastapi import APIRouter

router = APIRouter()
