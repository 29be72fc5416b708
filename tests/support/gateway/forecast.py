"""What the frameworks' tests ask for: an object that a schema describes."""

from typing import Literal

from pydantic import BaseModel, Field

QUESTION = "Is it warm in Rome?"


class Forecast(BaseModel):
    """The weather of some days."""

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)
