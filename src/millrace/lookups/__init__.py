"""Lookups: sources that are asked for rows by key, over HTTP, in databases and from functions."""

from millrace.limits.secrets import Secrets, names_in
from millrace.lookups.database import DatabaseSource, database
from millrace.lookups.function import FunctionSource, function
from millrace.lookups.http import HttpSource, http
from millrace.lookups.refused import Refused
from millrace.lookups.source import Session, Source
from millrace.lookups.terms import Terms

__all__ = [
    "DatabaseSource",
    "FunctionSource",
    "HttpSource",
    "Refused",
    "Secrets",
    "Session",
    "Source",
    "Terms",
    "database",
    "function",
    "http",
    "names_in",
]
