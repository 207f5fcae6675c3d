"""Language models behind OpenAI-compatible endpoints, as predicates and as lookups.

The invariant: an answer that was cut off, or has another number of entries, says nothing of any row.
"""

from millrace.errors import require

require("lookups", "a language model", "aiohttp")
