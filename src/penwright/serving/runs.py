"""Runs on this machine: curves, samples, alerts."""

from fastapi import APIRouter

router = APIRouter()
