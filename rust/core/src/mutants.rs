//! Broken builds of single rules, to show that the tests would notice. Compiled in only with
//! `--cfg mutants`; which one is broken is chosen at run time by `HOLDFAST_MUTANT`. In every other build
//! [`mutant`] is a constant `false`.

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A rule that can be broken.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutant { $($(#[$doc])* $name),* }

        impl Mutant {
            pub const ALL: &'static [(&'static str, Mutant)] = &[$((stringify!($name), Mutant::$name)),*];
        }
    };
}

mutants! {
    /// `seq` counts by two.
    SeqSkips,
    /// `prev` never moves on.
    PrevFrozen,
    /// A step that completed can be cancelled.
    CancelCompletedStep,
    /// Any ended run can be retried.
    RetryAnyEnd,
    /// A failed write runs again after a retry.
    RerunFailedWrite,
    /// The fold takes records under any fence.
    FoldAnyFence,
    /// The fold takes a patch for any version.
    FoldAnyVersion,
    /// The fold takes any record after the end.
    FoldAfterEnd,
    /// Commands on a stream of a newer Holdfast.
    ActOnNewer,
    /// Commands on an ended run.
    ActAfterEnd,
    /// Any fence holds.
    AnyFence,
    /// A running step can be claimed once more.
    ClaimTwice,
    /// A step can be claimed before those that it comes after.
    ClaimBlocked,
    /// A claim gets the fence of the one before.
    FenceStands,
    /// A lease is recovered while it holds.
    RecoverLive,
    /// Tries are not counted.
    AttemptsUnlimited,
    /// A patch for any version is taken.
    AnyVersion,
    /// A step waits for what is already there.
    LoseWakeUp,
    /// A consumer of a stream may go back.
    OffsetsGoBack,
    /// A fork does again what its parent has done.
    ForkRepeats,
    /// A key of the whole store means nothing to other runs.
    KeyOfOneRun,
    /// A fork is cut while a child is open, and waits for its end for ever.
    ForkOrphans,
    /// A paused run goes on making calls.
    ActWhilePaused,
    /// A timer that is due fires before recorded calls are made again.
    TimersOvertake,
    /// A timer ends before its time.
    TakeEarly,
    /// A step wakes before what it waits for has come.
    WakeUnanswered,
    /// A step ends although a write of it is unknown.
    EndWithOpenWrite,
    /// A run ends with its first step.
    FinishEarly,
    /// The low-level door takes any kind.
    DoorWide,
    /// Whoever asks counts as a person.
    AnyoneIsAPerson,
    /// An envelope is journaled each time it comes.
    DeliverTwice,
    /// A call takes a match in another lane at once.
    CrossLaneAtOnce,
    /// A new write never parks.
    NeverPark,
    /// A step ends although recorded writes were not made again.
    EndUnclaimed,
    /// A write that was sent off is sent off again.
    RepeatStartedWrite,
    /// A child gets more than its parent has.
    EscrowUnchecked,
    /// A child has no bound where its parent gave it nothing.
    ChildUnbounded,
    /// What an accepted divergence abandoned is done again under its key.
    AbandonedRepeats,
    /// A restricted run has children without holding the right to.
    AnyoneSpawns,
    /// A child that is tried again has what it gave back.
    RetriedKeepsSlice,
    /// A child itself costs nothing.
    ChildFree,
    /// A budget is raised where it bounds nothing.
    RaiseUnbounded,
    /// Only asking rules say who must approve.
    ApproversOfAsking,
    /// What a body says of its failure is less private than what it was given.
    MessagesLeak,
    /// A frame settles a call of any step and kind.
    SettleAnyCall,
    /// A write in doubt is sent off again although no key protects it.
    RepeatDoubtedWrite,
    /// A report about an older dispatch counts for the newest.
    AnyDispatch,
    /// Outcomes are delivered in any order.
    AnyOrder,
    /// Contents of an open run can be erased.
    EraseOpen,
    /// Policy: an allowing rule wins over a stricter one.
    AllowWins,
    /// Policy: what fails does not deny.
    ErrorsAllow,
    /// Policy: risky writes that nobody ruled about are allowed.
    RiskAllowed,
    /// Policy: an evaluator can loosen.
    EvaluatorLoosens,
    /// Policy: an obligation that is not met is ignored.
    ObligationIgnored,
    /// Budgets: nothing is too much.
    Overspend,
    /// Effects: a key protects a tool that has changed.
    AnyVersionRepeats,
    /// Effects: a key protects for ever.
    KeyNeverExpires,
    /// Effects: a tool is asked whether it happened while the permit can still act.
    ReconcileAtOnce,
    /// Effects: a repeat that did nothing ends the doubt about what it repeats.
    ForgetDoubt,
    /// Effects: only the newest permit is looked at, though an older one may still act.
    NewestPermitOnly,
    /// Effects: what is said about one dispatch resolves another.
    ResolveAny,
    /// Effects: a person resolves a doubt while the permit can still act, without force.
    ResolveAtOnce,
    /// Effects: a worker reports about a call that it did not start.
    AnyReporter,
    /// Hooks: a failure opens the door.
    HookFailsOpen,
    /// Hooks: any response is taken at any point.
    AnyResponse,
    /// Hooks: a response needs no right.
    AnyRight,
    /// Hooks: a write is made once more because a hook wants it.
    RetryWrite,
    /// Approvals: a changed policy or tool does not matter.
    StaleApproval,
    /// Approvals: other arguments than those approved are passed.
    AnyArguments,
    /// Approvals: agents, tools and hooks approve.
    ApproveFromInside,
    /// Approvals: a request is decided a second time.
    DecideTwice,
    /// Approvals: requests and grants never expire.
    ApprovalNeverExpires,
    /// Approvals: anybody has the role.
    AnyApprover,
    /// Approvals: one person votes twice.
    VoteTwice,
    /// Approvals: one vote is enough.
    NoQuorum,
    /// Approvals: a revoked grant is spent.
    RevokedGrant,
    /// Approvals: a session's grant is spent more often than it says.
    GrantAnyUses,
    /// Approvals: a session's grant is spent beyond what it is for.
    GrantAnyScope,
    /// Approvals: the agent's own arguments run although an approver put others in their place.
    EditForgotten,
    /// Approvals: somebody who may not approve edits.
    AnyEditor,
    /// Policy: what was allowed once is allowed for ever, whatever the tool or its sandbox have become.
    AllowedForEver,
    /// Capabilities: what another run says of one that it had is not heard.
    RevokedHereOnly,
    /// Effects: a body in a process of its own is thought dead with the worker that started it.
    SandboxDiesWithWorker,
    /// Capabilities: nobody looks at them.
    CapabilityIgnored,
    /// Capabilities: restrictions on arguments are not looked at.
    CapabilityUnconstrained,
    /// Capabilities: they never expire.
    CapabilityNeverExpires,
    /// Capabilities: what was made of a revoked one lives on.
    RevokedAlone,
    /// Capabilities: what is made of one allows more than it.
    AmplifyCapability,
    /// Sandboxes: a tool that needs one runs without.
    SandboxOptional,
    /// Calls: a key of another call is taken.
    AnyKeyUse,
    /// Calls: an attached step's call needs no key.
    NoKeyNeeded,
    /// The store: a permit leaves before its barrier.
    EarlyPermit,
    /// The store: a barrier syncs nothing.
    NoSync,
    /// The store: nobody guards the log, or looks whether it is still the file at its path.
    AnyWal,
    /// The store: turns are not taken.
    NoTurn,
    /// The store: a poisoned store goes on.
    IgnorePoison,
    /// The store: a forked child writes through its parent's handle.
    UseForkedHandle,
    /// The store: answers leave before COMMIT.
    AnswerEarly,
    /// The store: a cached fold is not compared with what others wrote.
    StaleCache,
    /// The store: blobs are written in place, without a sync.
    HastyBlobs,
    /// The store: verify trusts the frames' own heads.
    TrustHeads,
    /// The store: verify opens no contents.
    TrustContents,
    /// The store: a restored store keeps its epoch.
    KeepEpoch,
    /// Any path leads from a leaf to the root.
    LooseInclusion,
    /// Any path leads from an old tree to a new one.
    LooseConsistency,
    /// Any signature under a key's name is its own.
    LooseSignature,
    /// A bundle's summary may say what it likes.
    LooseFacts,
    /// The frame that a proof speaks of need not be in the stream.
    LooseProof,
    /// A content that is not there counts as erased.
    LooseLoss,
    /// A content of a bundle need not be what was committed to.
    LooseOpening,
}

/// Whether that rule is broken in this process.
#[cfg(mutants)]
pub fn mutant(which: Mutant) -> bool {
    use std::sync::OnceLock;
    static ACTIVE: OnceLock<Option<Mutant>> = OnceLock::new();
    let active = ACTIVE.get_or_init(|| {
        let name = std::env::var("HOLDFAST_MUTANT").ok().filter(|name| !name.is_empty())?;
        let found = Mutant::ALL.iter().find(|(known, _)| *known == name);
        assert!(found.is_some(), "no mutant is called {name}");
        found.map(|(_, mutant)| *mutant)
    });
    *active == Some(which)
}

/// Whether that rule is broken in this process: never, in this build.
#[cfg(not(mutants))]
#[inline]
pub const fn mutant(_: Mutant) -> bool {
    false
}
