//! Why a command is refused. A refused command has changed nothing.

use crate::canonical::CanonicalError;
use crate::error::{Code, Coded};
use crate::records::{CallKind, Fence, Name, ReadError, RunStatus, StepStatus, WaitOn};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the run exists")]
    RunExists,
    #[error("there is no such run")]
    NoSuchRun,
    #[error("there is no such step")]
    NoSuchStep,
    #[error("the step has no such call")]
    NoSuchCall,
    #[error("the run was written in part by a newer Holdfast")]
    NewerFormat,
    #[error("the run is {0}")]
    RunEnded(RunStatus),
    #[error("the claim {}.{} no longer holds{}", held.0, held.1, newest.map(|f| format!(", the newest is {}.{}", f.0, f.1)).unwrap_or_default())]
    StaleFence { held: Fence, newest: Option<Fence> },
    #[error("the step is {0}")]
    StepStatus(StepStatus),
    #[error("the step comes after others that have not completed")]
    StepBlocked,
    #[error("the step is not due before {0}")]
    NotBefore(u64),
    #[error("another step runs under the same concurrency key")]
    KeyBusy,
    #[error("the run is paused")]
    RunPaused,
    #[error("the run is not paused")]
    NotPaused,
    #[error("the run is to be cancelled")]
    CancelRequested,
    #[error("nobody asked for the run to be cancelled")]
    NotCancelRequested,
    #[error("the lease still holds")]
    LeaseLive,
    #[error("the bound {0} is exceeded")]
    LimitExceeded(&'static str),
    #[error("nothing here can enforce the limit {0}")]
    Unenforceable(&'static str),
    #[error("the state has version {actual}, not {expected}")]
    StateConflict { expected: u64, actual: u64 },
    #[error("a patch is a JSON object")]
    PatchNotObject,
    #[error("a wait needs something to wait for")]
    NothingToWaitFor,
    #[error("what the step would wait for ({0}) is already there")]
    WaitOver(WaitOn),
    #[error("the step does not wait for this ({0})")]
    NotWaiting(WaitOn),
    #[error("what the step waits for ({0}) has not come")]
    NotAnswered(WaitOn),
    #[error("a write of the step was sent off and its outcome is not known")]
    OpenWrite,
    #[error("a step exists under this id, or comes after one that does not exist")]
    BadStep,
    #[error("a run has at least one step")]
    NoSteps,
    #[error("the low-level door takes notes, costs, artifacts, checkpoints and x.* only")]
    KindReserved,
    #[error("a live lease guards the run: append with its claim")]
    ClaimNeeded,
    #[error("the run is {0}, and an open run needs its contents")]
    RunOpen(RunStatus),
    #[error("an open fork needs the run's contents")]
    OpenForks,
    #[error("only a failed run can be retried")]
    NotFailed,
    #[error("a fork begins at a record of an existing run, before its end and while no write is under way")]
    BadForkPoint,
    #[error("the envelope is addressed to another run")]
    Misaddressed,
    #[error("there is no such running child")]
    NoSuchChild,
    #[error("the child exists")]
    ChildExists,
    #[error("the budget has no room for what the child is to get")]
    BudgetExceeded,
    #[error("it names no account, or one that the run's budget does not bound")]
    BudgetUnlimited,
    #[error("a wait lacks what it needs to end: {0}")]
    BadWait(WaitOn),
    #[error("only a person may do this")]
    NotAPerson,
    #[error("only a worker may do this")]
    NotAWorker,
    #[error("the deadline has not passed")]
    DeadlineNotDue,
    #[error("a run does not end at once for this reason")]
    BadEndReason,
    #[error("the key was used for another call, or with other arguments")]
    IdempotencyConflict,
    #[error("a call of an attached step needs a key")]
    KeyNeeded,
    #[error("this was done under the same key of the store, and what came of it is no longer known")]
    KeyForgotten,
    #[error("the call is being made")]
    CallBusy,
    #[error("a call of the kind {0} does something else")]
    BadCall(CallKind),
    #[error("the consumer has come further than {0}")]
    OffsetBack(u64),
    #[error("the run that this is a fork of has done it")]
    ForkWouldRepeat,
    #[error("the call is not running")]
    NotRunning,
    #[error("the call was dispatched {newest} times, and this is about dispatch {told}")]
    OtherDispatch { told: u32, newest: u32 },
    #[error("the call is not in doubt")]
    NotInDoubt,
    #[error("the permit may still act for {0} ms")]
    PermitMayAct(u64),
    #[error("there is no such request for approval")]
    NoSuchApproval,
    #[error("the request is {0}{by}", by = .1.as_ref().map(|by| format!(", by {}", by.as_str())).unwrap_or_default())]
    ApprovalOver(&'static str, Option<Name>),
    #[error("the request has expired")]
    ApprovalExpired,
    #[error("the request does not allow this decision")]
    DecisionNotAllowed,
    #[error("the active policy gives {} none of the roles that the request needs", .0.as_str())]
    NotAnApprover(Name),
    #[error("agents, tools, hooks and workers approve nothing")]
    SelfApproval,
    #[error("{} has voted", .0.as_str())]
    AlreadyVoted(Name),
    #[error("there is no such grant")]
    NoSuchGrant,
    #[error("there is no such session")]
    NoSuchSession,
    #[error(
        "a vote for the session needs what for: uses, a time to come and constraints within bounds; others have none"
    )]
    BadScope,
    #[error("policy denies the edited arguments")]
    EditDenied,
    #[error("the run holds no such capability, or it is revoked, expired or handed on")]
    NoSuchCapability,
    #[error("that would allow more than the capability does")]
    CapabilityExceeded,
    #[error("a tool's timeout or its attempts are out of bounds")]
    BadTool,
    #[error("{0}")]
    Value(#[from] CanonicalError),
    #[error("{0}")]
    Body(#[from] ReadError),
}

impl Coded for Refused {
    fn code(&self) -> Code {
        match self {
            Self::RunExists => Code::RunExists,
            Self::NoSuchRun => Code::NoSuchRun,
            Self::NoSuchStep => Code::NoSuchStep,
            Self::NoSuchCall => Code::NoSuchCall,
            Self::NewerFormat => Code::NewerFormat,
            Self::RunEnded(_) => Code::RunEnded,
            Self::StaleFence { .. } => Code::StaleFence,
            Self::StepStatus(_) => Code::StepStatus,
            Self::StepBlocked => Code::StepBlocked,
            Self::NotBefore(_) => Code::NotBefore,
            Self::KeyBusy => Code::KeyBusy,
            Self::RunPaused => Code::RunPaused,
            Self::NotPaused => Code::NotPaused,
            Self::CancelRequested => Code::CancelRequested,
            Self::NotCancelRequested => Code::NotCancelRequested,
            Self::LeaseLive => Code::LeaseLive,
            Self::LimitExceeded(_) => Code::LimitExceeded,
            Self::StateConflict { .. } => Code::StateConflict,
            Self::PatchNotObject => Code::PatchNotObject,
            Self::NothingToWaitFor => Code::NothingToWaitFor,
            Self::WaitOver(_) => Code::WaitOver,
            Self::NotWaiting(_) => Code::NotWaiting,
            Self::NotAnswered(_) => Code::NotAnswered,
            Self::OpenWrite => Code::OpenWrite,
            Self::BadStep => Code::BadStep,
            Self::NoSteps => Code::NoSteps,
            Self::KindReserved => Code::KindReserved,
            Self::ClaimNeeded => Code::ClaimNeeded,
            Self::RunOpen(_) => Code::RunOpen,
            Self::OpenForks => Code::OpenForks,
            Self::NotFailed => Code::NotFailed,
            Self::BadForkPoint => Code::BadForkPoint,
            Self::Misaddressed => Code::Misaddressed,
            Self::NoSuchChild => Code::NoSuchChild,
            Self::ChildExists => Code::ChildExists,
            Self::BudgetExceeded | Self::BudgetUnlimited => self.other_code(),
            Self::BadWait(_) => Code::BadWait,
            Self::NotAPerson => Code::NotAPerson,
            Self::NotAWorker => Code::NotAWorker,
            Self::DeadlineNotDue => Code::DeadlineNotDue,
            Self::BadEndReason => Code::BadEndReason,
            Self::IdempotencyConflict => Code::IdempotencyConflict,
            Self::KeyNeeded => Code::KeyNeeded,
            Self::CallBusy => Code::CallBusy,
            Self::BadCall(_) => Code::BadCall,
            Self::OffsetBack(_) => Code::OffsetBack,
            Self::ForkWouldRepeat => Code::ForkWouldRepeat,
            Self::NotRunning => Code::NotRunning,
            Self::OtherDispatch { .. } => Code::OtherDispatch,
            Self::NotInDoubt => Code::NotInDoubt,
            Self::PermitMayAct(_) => Code::PermitMayAct,
            Self::NoSuchApproval => Code::NoSuchApproval,
            Self::ApprovalOver(..) => Code::ApprovalOver,
            Self::ApprovalExpired => Code::ApprovalExpired,
            Self::DecisionNotAllowed => Code::DecisionNotAllowed,
            Self::NotAnApprover(_) => Code::NotAnApprover,
            Self::SelfApproval => Code::SelfApproval,
            Self::AlreadyVoted(_) => Code::AlreadyVoted,
            Self::NoSuchGrant => Code::NoSuchGrant,
            Self::NoSuchSession => Code::NoSuchSession,
            Self::BadScope => Code::BadScope,
            Self::EditDenied => Code::EditDenied,
            Self::NoSuchCapability => Code::NoSuchCapability,
            Self::CapabilityExceeded => Code::CapabilityExceeded,
            Self::BadTool => Code::BadTool,
            Self::KeyForgotten | Self::Unenforceable(_) | Self::Value(_) | Self::Body(_) => self.other_code(),
        }
    }
}

impl Refused {
    /// The codes of budgets, of what a run was once asked for and cannot be, and of what a refusal only passes on.
    fn other_code(&self) -> Code {
        match self {
            Self::BudgetExceeded => Code::BudgetExceeded,
            Self::BudgetUnlimited => Code::BudgetUnlimited,
            Self::KeyForgotten => Code::KeyForgotten,
            Self::Unenforceable(_) => Code::Unenforceable,
            Self::Value(error) => error.code(),
            Self::Body(error) => error.code(),
            _ => Code::Internal, // it has one of its own
        }
    }
}
