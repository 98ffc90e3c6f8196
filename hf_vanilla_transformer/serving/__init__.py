"""HTTP server: models in worker threads, with dynamic batching.

Needs the extra `serve`: FastAPI, uvicorn, prometheus-client and sentencex.
"""
