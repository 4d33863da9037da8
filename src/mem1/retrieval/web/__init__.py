"""The open web: search APIs behind the port `Retriever`, and pages opened by address.

urls.py    which addresses may be fetched            transport.py  one request, bounded in time and size
fetch.py   a page, redirects and robots.txt checked  reader.py     its readable text, in pieces
apis.py    the search APIs                           search.py     asks one of them
cache.py   every answer on disk
"""
