"""HTTP for retrieval, engines and evaluation: requests, failover, threads, spending limits, and serving."""
