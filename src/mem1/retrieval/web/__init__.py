"""The open web: search APIs behind the port `Retriever`, and pages opened by address.

urls.py    which addresses may be fetched            transport.py  one request, bounded in time and size
pages.py   pages as readable text in pieces          search.py     the search APIs
cache.py   every answer on disk
"""
