"""Ranges of numbers in settings. A name says where its range begins and ends, and whether the ends belong to it."""

from typing import Annotated

from pydantic import Field

From0To1 = Annotated[float, Field(ge=0, le=1)]
From0Below1 = Annotated[float, Field(ge=0, lt=1)]
Above0To1 = Annotated[float, Field(gt=0, le=1)]
Above0Below1 = Annotated[float, Field(gt=0, lt=1)]
