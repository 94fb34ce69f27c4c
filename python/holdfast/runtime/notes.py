"""What agent code writes down: notes, costs, artifacts, checkpoints. Each is written once, also when the code
runs again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from holdfast import _core
from holdfast.errors import HoldfastError
from holdfast.gateway.outcomes import fix
from holdfast.values import to_json
from holdfast.visible import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.runtime.conductor import Conductor
    from holdfast.runtime.operations import Operation, Own
    from holdfast.store import Store

Json = dict[str, Any]
Media = Literal[
    "image", "audio", "video", "frame", "audio_segment", "video_segment", "transcript", "embedding", "derived"
]
Level = Literal["debug", "info", "warning", "error"]


class NoteError(HoldfastError, ValueError):
    """Something that cannot be written down as it was given."""


@dataclass(frozen=True)
class Artifact(Shown):
    """Something that a run made: where its bytes are, and what it was made of."""

    id: str
    run: str
    name: str
    kind: str
    media: str
    bytes: int | None
    uri: str | None
    derived_from: tuple[str, ...]


@dataclass(frozen=True)
class Checkpoint(Shown):
    """How far a consumer of a stream has come."""

    stream: str
    consumer: str
    offset: int
    watermark: int | None = None
    chunk: int | None = None
    partial: Any = None
    backpressure: str | None = None


class Notes:
    """The part of a context that writes things down."""

    _conductor: Conductor
    run: str

    do: Callable[..., Any]
    _own: Callable[..., Own]
    _await: Callable[..., Any]
    _new_call: Callable[[], str]

    async def log(self, text: str, *, level: Level = "info") -> None:
        """Writes a note into the journal."""
        body = {"level": level, "text": text}
        await self._noted("log", level, {"level": level, "text": text}, "note.logged", body)

    async def cost(
        self,
        *,
        usd: float | None = None,
        tokens: int | None = None,
        model: str | None = None,
        provider: str | None = None,
    ) -> None:
        """Records what something cost. It counts against the run's budget."""
        await self._spent("cost", model or "cost", usd, tokens, model=model, provider=provider)

    async def record_model_call(
        self,
        model: str,
        *,
        provider: str | None = None,
        input_tokens: int = 0,
        output_tokens: int = 0,
        usd: float | None = None,
    ) -> None:
        """Records a call of a model that was made elsewhere; tokens and price count against the budget."""
        more = {"input_tokens": input_tokens, "output_tokens": output_tokens, "provider": provider}
        await self._spent("model_call", model, usd, input_tokens + output_tokens, model=model, **more)

    async def _spent(
        self, kind: str, name: str, usd: float | None, tokens: int | None, **more: object
    ) -> None:
        amounts: Json = {}
        if usd is not None:
            amounts["usd_micros"] = round(usd * 1_000_000)
        if tokens is not None:
            amounts["tokens"] = tokens
        if any(amount < 0 for amount in amounts.values()):
            raise NoteError("a cost is not negative", code="bad_value", fix=fix("bad_value"))
        body = {"amounts": amounts} | {name: value for name, value in more.items() if value is not None}
        await self._noted(kind, name, body, "cost.recorded", body)

    async def artifact(self, name: str, data: bytes | str, *, media: str | None = None) -> Artifact:
        """Keeps something that the run made."""
        return await self._kept("artifact", "file", name, data, None, media, ())

    async def media(
        self,
        kind: Media,
        name: str,
        data: bytes | None = None,
        *,
        uri: str | None = None,
        media: str | None = None,
        derived_from: Sequence[Artifact | str] = (),
    ) -> Artifact:
        """Keeps an image, a sound, a transcript and so on, or where it is, and what it was derived from."""
        return await self._kept("media", kind, name, data, uri, media, derived_from)

    async def _kept(
        self,
        call_kind: str,
        kind: str,
        name: str,
        data: bytes | str | None,
        uri: str | None,
        media: str | None,
        derived_from: Sequence[Artifact | str],
    ) -> Artifact:
        if (data is None) == (uri is None):
            raise NoteError(
                "an artifact has data, or a uri where it is", code="bad_value", fix=fix("bad_value")
            )
        text = isinstance(data, str)
        raw = data.encode() if isinstance(data, str) else data
        media = media or ("text/plain" if text else "application/octet-stream")
        sources = [source if isinstance(source, str) else source.id for source in derived_from]
        call = self._new_call()
        known: Json = {"derived_from": sources, "kind": kind, "media": media, "name": name}
        body = {**known, "artifact": f"art_{call.partition('_')[2]}"}
        digest = None if raw is None else _core.bytes_digest(raw)
        arguments = {**known, "content": digest, "uri": uri}
        entry: Json = {"body": body, "kind": "artifact.created", "privacy": "internal"}
        if uri is not None:
            body["uri"] = uri

        def keep() -> None:
            """The bytes come first, once: a record may refer to what is there."""
            assert raw is not None
            entry["blobs"] = {"content": self._conductor.store.put_blob(raw, media=media)}

        def made(operation: Operation, *_: object) -> Artifact:
            return Artifact(
                f"art_{operation.call.partition('_')[2]}",
                self.run,
                name,
                kind,
                media,
                None if raw is None else len(raw),
                uri,
                tuple(sources),
            )

        act = {"act": "note", "entry": entry}
        first = None if raw is None else keep
        asked = self._own(call_kind, name, arguments, act, made, known=made, call=call, first=first)
        return await self._await(asked)  # type: ignore[no-any-return]

    async def stream_checkpoint(
        self,
        stream: str,
        consumer: str,
        offset: int,
        *,
        watermark: int | None = None,
        chunk: int | None = None,
        partial: object = None,
        backpressure: str | None = None,
    ) -> None:
        """Records how far a consumer of a stream has come. Offsets never go back (``offset_back``)."""
        optional = {"backpressure": backpressure, "chunk": chunk, "watermark": watermark}
        body: Json = {"consumer": consumer, "kind": "stream", "name": stream, "offset": offset}
        body |= {name: value for name, value in optional.items() if value is not None}
        if partial is not None:
            body["partial"] = to_json(partial)
        await self._noted("checkpoint", stream, body, "checkpoint.created", body)

    async def newest_checkpoint(self, stream: str, consumer: str) -> Checkpoint | None:
        """How far a consumer of a stream had come when this was first asked here; None before its first
        checkpoint. It is a recorded read: code that runs again gets the same."""
        store, run = self._conductor.store, self.run
        found = await self.do(
            "newest_checkpoint", lambda *asked: newest(store, run, *asked), stream, consumer, effect="read"
        )
        return None if found is None else Checkpoint(**found)

    async def _noted(self, kind: str, name: str, arguments: Json, record: str, body: Json) -> None:
        act = {"act": "note", "entry": {"body": body, "kind": record, "privacy": "internal"}}
        await self._await(self._own(kind, name, arguments, act, lambda *_: None, known=lambda _: None))


def newest(store: Store, run: str, stream: str, consumer: str) -> Json | None:
    """The newest checkpoint of a consumer in a run, or where that is a fork of, as JSON."""
    until = None
    while True:
        rows = store.sql(
            "SELECT seq FROM events WHERE stream = ?1 AND kind = 'checkpoint.created'"
            " AND json_extract(body, '$.name') = ?2 AND json_extract(body, '$.consumer') = ?3"
            " AND (?4 IS NULL OR seq <= ?4) ORDER BY seq DESC LIMIT 1",
            [run, stream, consumer, until],
        )
        if rows:
            record = next(store.read(run, after=rows[0]["seq"] - 1))
            known = ("consumer", "offset", "watermark", "chunk", "partial", "backpressure")
            return {"stream": stream} | {name: record.value[name] for name in known if name in record.value}
        origin = store.state(run).get("fork")
        if origin is None:
            return None
        run, until = origin["parent"], origin["at"]
