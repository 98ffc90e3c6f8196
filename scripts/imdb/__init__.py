"""Classifiers of film reviews, compared on IMDb."""
