"""The loss: its mathematics once, and thin skins over it."""
