"""What ``rt.evidence`` can do: one method for each way to look at the past."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.evidence import (
    attribution,
    bundle,
    diff,
    opening,
    picture,
    replay,
    safety,
    shadow,
    travel,
    verifying,
)
from holdfast.evidence.aio import AsyncEvidence
from holdfast.evidence.attribution import By
from holdfast.evidence.journal import Journal
from holdfast.evidence.review import review

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.evidence.attribution import Failure, Spent
    from holdfast.evidence.bundle import Exported, Privacy
    from holdfast.evidence.diff import Diff
    from holdfast.evidence.replay import Replay
    from holdfast.evidence.review import Review
    from holdfast.evidence.safety import Safety
    from holdfast.evidence.shadow import Shadow
    from holdfast.evidence.travel import Frame, Moment
    from holdfast.evidence.verifying import Verified
    from holdfast.gateway.policy import Policy
    from holdfast.keys import Key
    from holdfast.runtime.agents import Agent
    from holdfast.runtime.runs import Run
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Seal

    Told = str | Run | Journal | Path
    """A run of the store, a journal, or the path of a bundle."""

Json = dict[str, Any]


class Evidence:
    """Reads and proves the past of a runtime's runs. Nothing here writes to the store but :meth:`seal` and
    :meth:`witnessed`.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.aio = AsyncEvidence(self)
        """What takes its time, to be awaited."""

    def journal(self, run: Told) -> Journal:
        """The facts of a run, as they are now, or as the bundle at a path has them.

        Raises:
            VerifyError: the bundle is not good; with what is wrong with it.
        """
        if isinstance(run, Journal):
            return run
        if isinstance(run, Path):
            return opening.journal(run)[0]
        return Journal.of(self._runtime.store, run if isinstance(run, str) else run.id)

    def seal(self, key: Key, *, by: str = "holdfast") -> Seal:
        """Signs a head over everything that was committed so far: keep it elsewhere."""
        return self._runtime.store.seal(key, by=by)

    def witnessed(self, checkpoint: str, *, keys: Sequence[str]) -> Seal:
        """Keeps what witnesses have signed on a copy of a seal; bundles under that seal take it along."""
        return self._runtime.store.witnessed(checkpoint, keys=keys)

    def export(
        self,
        run: str | Run,
        target: str | Path,
        *,
        include: Sequence[Privacy] = bundle.OPEN,
        key: Key | None = None,
        since: Sequence[str] = (),
    ) -> Exported:
        """Writes a run's evidence into a new folder or a ``*.zip``; see :func:`holdfast.evidence.export`."""
        name = run if isinstance(run, str) else run.id
        return bundle.export(self._runtime.store, name, target, include=include, key=key, since=since)

    @staticmethod
    def verify(path: str | Path, *, keys: Sequence[str] = (), seals: Sequence[str] = ()) -> Verified:
        """Verifies a bundle; see :func:`holdfast.evidence.verify`."""
        return verifying.verify(path, keys=keys, seals=seals)

    def at(self, run: Told, seq: int | None = None) -> Moment:
        """Where a run stood after a record: state, ledger, costs, open approvals, waits.

        Raises:
            RecordError: ``bad_value``: there is no such record.
        """
        return travel.moment(self.journal(run), seq)

    def frames(self, run: Told) -> Iterator[Frame]:
        """Frame by frame, what changed."""
        return travel.frames(self.journal(run))

    def replay(self, run: str | Run, *, pure: bool = False) -> Replay:
        """Runs a run's code again against what was recorded, and says whether it came to the same.

        No body, hook, approver or cleanup is called and nothing is written. A call that has no recorded
        outcome ends it, with what was asked for. What code does outside its context it does again.

        Args:
            run: the run; this runtime has its agent.
            pure: run the bodies of tools that declare ``effect="pure"``: they leave no record. Without
                this, such a call ends the replay too.
        """
        return self._runtime._sync(self._replay(run, pure=pure))

    async def _replay(self, run: str | Run, *, pure: bool) -> Replay:
        return await replay.replay(self._runtime, self.journal(run), pure=pure)

    def shadow(
        self,
        run: Told,
        *,
        agent: Agent[..., Any] | str | None = None,
        policy: Policy | Mapping[str, Any] | str | Path | None = None,
        pure: bool = False,
    ) -> Shadow:
        """Runs a run's input through other code or another policy, and says what comes out otherwise.

        Nothing leaves: each effect is given back from the run's ledger, by name and arguments, or refused.

        Args:
            run: the run; from a bundle too, which has not its chance: draws are the shadow's own then.
            agent: another agent of this runtime; the run's own, unless given.
            policy: another policy; the store's active one, unless given.
            pure: run the bodies of tools that declare ``effect="pure"``.
        """
        return self._runtime._sync(self._shadow(run, agent=agent, policy=policy, pure=pure))

    async def _shadow(self, run: Told, **options: Any) -> Shadow:  # noqa: ANN401 (as above)
        return await shadow.shadow(self._runtime, self.journal(run), **options)

    def replay_safety(self, run: Told) -> Safety:
        """Whether a run can be replayed: every cause against it, and the record."""
        return safety.safety(self.journal(run))

    def golden(self, run: Told) -> bytes:
        """A run as a small canonical JSON document, without ids and times: record it once, compare in CI."""
        return picture.golden(self.journal(run))

    def diff(self, one: Told | bytes, other: Told | bytes) -> Diff:
        """What differs between two runs, by dimension; either may be a golden document."""
        return diff.diff(self._picture(one), self._picture(other))

    def _picture(self, run: Told | bytes) -> Json:
        if isinstance(run, bytes):
            return picture.read_golden(run)
        return picture.picture(self.journal(run))

    def review(self, run: Told, *, max_usd: float | None = None) -> Review:
        """Checks over a run that can fail, as blockers and warnings.

        Args:
            run: the run.
            max_usd: what it may have cost.
        """
        journal = self.journal(run)
        return review(journal, max_usd=max_usd, sealed=self._sealed(journal))

    def _sealed(self, journal: Journal) -> bool:
        """Whether a seal was signed after the run's newest frame."""
        store = self._runtime.store
        if not journal.facts or journal.store != store.id:
            return False
        seals = [record.position for record in store.read("store") if record.kind == "seal.signed"]
        return bool(seals) and seals[-1] > journal.facts[-1].frame

    def costs(self, by: By | str = By.AGENT, *, runs: Iterable[Told] | None = None) -> list[Spent]:
        """What runs cost, by ``agent``, ``step``, ``tool``, ``model`` or ``day``; all runs unless given."""
        return attribution.costs(self._journals(runs), By(by))

    def failures(self, *, runs: Iterable[Told] | None = None) -> list[Failure]:
        """How runs failed, by a signature that the same bug has in every run; all runs unless given."""
        return attribution.failures(self._journals(runs))

    def _journals(self, runs: Iterable[Told] | None) -> Iterator[Journal]:
        if runs is None:
            runs = [row["id"] for row in self._runtime.store.sql("SELECT id FROM runs ORDER BY stream")]
        return (self.journal(run) for run in runs)
