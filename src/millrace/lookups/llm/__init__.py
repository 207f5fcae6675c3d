"""Language models behind OpenAI-compatible endpoints, as predicates and as lookups."""

from millrace.errors import require

require("lookups", "a language model", "aiohttp", "httpx")
