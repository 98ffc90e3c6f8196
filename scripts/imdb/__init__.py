"""The IMDb comparison."""
