"""The server: models in worker threads, their dynamic batches, and the routes over HTTP.

Needs the extra `serve`: FastAPI, uvicorn, prometheus-client and sentencex.
"""
