"""The vocabulary: frozen data that every other module speaks in. Pure: pydantic at most, no file is opened."""
