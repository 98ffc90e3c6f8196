"""The tutorials as recipes."""
