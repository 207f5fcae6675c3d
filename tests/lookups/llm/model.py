"""A server that answers like an OpenAI-compatible one, decides by rule, and misbehaves as told."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.limits.service import Served

KEY = "sk-very-secret"


class ModelServer(Served):
    """Answers ``POST /v1/chat/completions`` while the ``with`` block runs.

    Args:
        decide: Returns the answer of one question.
        misbehave: Gets the questions of a request and how many requests there were; returns ``""`` for an
            answer, an HTTP status, ``cut``, ``prose``, ``null``, ``short`` (an answer too few), ``swapped``,
            ``silent`` (of tokens) or ``fence``.

    Attributes:
        asked: How often each question was in a request that was answered well.
        requests: Requests in all.
        most: The most that were under way at once.
        tokens: That were told, of each request with its time in seconds.
        bodies: The latest request.
    """

    def __init__(
        self, decide: Callable[[str], Any], misbehave: Callable[[list[str], int], str] = lambda *_: ""
    ) -> None:
        self._decide = decide
        self._misbehave = misbehave
        self.asked: Counter[str] = Counter()
        self.requests = self.now = self.most = 0
        self.tokens: list[tuple[float, int]] = []
        self.body: dict[str, Any] = {}

    url = "/v1"

    def routes(self) -> list[web.AbstractRouteDef]:
        return [web.post("/v1/chat/completions", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            said = request.headers.get("Authorization")
            return web.json_response({"error": f"wrong key: {said}"}, status=401)
        self.requests += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            self.body = body = await request.json()
            await asyncio.sleep(0.002)  # long enough for others to come meanwhile
            return self._said(json.loads(body["messages"][1]["content"]))
        finally:
            self.now -= 1

    def _said(self, questions: list[str]) -> web.Response:
        how = self._misbehave(questions, self.requests)
        if how.isdigit():
            headers = {"Retry-After": "0"} if how == "429" else {}
            return web.json_response({"error": "not now"}, status=int(how), headers=headers)
        answers = [
            {"number": number, "answer": self._decide(question)}
            for number, question in enumerate(questions, 1)
        ]
        given = {"swapped": answers[::-1], "short": answers[:-1]}.get(how, answers)
        good = json.dumps({"answers": given})
        bad = {"prose": "Well, that depends on what you mean.", "null": None, "cut": good[: len(good) // 2]}
        text = bad.get(how, f"```json\n{good}\n```" if how == "fence" else good)
        if how in ("", "fence", "silent"):
            self.asked.update(questions)
        usage = {"prompt_tokens": 10 * len(questions), "completion_tokens": 2 * len(questions)}
        self.tokens.append((self._loop.time(), 12 * len(questions)))
        reason = "length" if how == "cut" else "stop"
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
        return web.json_response({"choices": [choice], **({} if how == "silent" else {"usage": usage})})
