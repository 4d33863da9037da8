"""The open web: search engines behind the port `Retriever`, and pages that are opened.

addresses.py    which addresses may be asked at all         connections.py  one request, bounded in time and size
fetch.py        a page's bytes, redirects followed by hand  page.py         its readable text, in pieces
search.py       one class for every search API              serper.py, brave.py, tavily.py, searxng.py
reader.py       fetch, robots, limits and cache together    robots.py, limits.py, cache.py
"""
