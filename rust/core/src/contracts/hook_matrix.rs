//! Which response is allowed where, and what a hook may declare.

use super::hook::{HookClass, HookExecution, HookFailure, HookPoint, HookSpec};
use crate::error::{Code, Coded};
use crate::records::Name;

impl HookPoint {
    /// The classes allowed here besides `observe`, which always is.
    pub fn allows(self) -> &'static [HookClass] {
        use HookClass as C;
        match self {
            Self::RunStarting => &[C::InjectContext, C::StopRun],
            Self::BeforeContextAssembly => &[C::InjectContext],
            Self::AfterContextAssembly => &[C::RequestCompaction, C::StopRun],
            Self::BeforeProviderProjection => &[C::ModifyProjection, C::StopRun],
            Self::BeforeModelCall => &[C::ModifyProjection, C::RequestApproval, C::StopRun],
            Self::AfterModelCall => &[C::RequestRetry, C::StopRun],
            Self::BeforeStructuredOutputValidation => &[C::ModifyValidationHints],
            Self::AfterStructuredOutputValidation => &[C::RequestRetry],
            Self::BeforeToolCall => &[C::Deny, C::ModifyToolRequest, C::RequestApproval],
            Self::AfterToolCall => &[C::RequestRetry, C::RewriteToolResult],
            Self::BeforeApprovalRequest => &[C::ModifyApprovalRequest, C::Deny],
            Self::BeforeSubagentStart => &[C::Deny, C::ModifySubagentRequest],
            Self::AfterSubagentTerminal => &[C::RequestUsageRollupRepair],
            Self::BeforeIsolationProcessStart => &[C::Deny, C::ModifyProcessRequest],
            Self::AfterIsolationProcessExit | Self::OnRunCancelRequested => &[C::RequestCleanupRepair],
            Self::BeforeRunComplete => {
                &[C::RequestRetry, C::ValidateDetach, C::StopCompletionWithRepairNeeded]
            }
            Self::BeforeCompaction => &[C::MarkProtectedContext],
            Self::AfterCompaction => &[C::RequestProjectionAuditRepair],
            Self::OnModelDelta | Self::AfterApprovalDecision | Self::AfterRunTerminal => &[],
        }
    }

    /// A hook here may never fail open.
    pub fn is_security_critical(self) -> bool {
        matches!(
            self,
            Self::BeforeToolCall
                | Self::BeforeApprovalRequest
                | Self::BeforeSubagentStart
                | Self::BeforeIsolationProcessStart
                | Self::BeforeRunComplete
        )
    }

    /// One cell of the matrix.
    pub fn permits(self, class: HookClass) -> bool {
        class == HookClass::Observe || self.allows().contains(&class)
    }
}

/// Why a hook is refused at registration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookSpecError {
    #[error("a hook's timeout must be more than zero")]
    NoTimeout,
    #[error("the class {class} is not allowed at {point}")]
    NotInMatrix { point: HookPoint, class: HookClass },
    #[error("a hook that does not block may only observe")]
    ObserverActs,
    #[error("a security-relevant hook may not fail open")]
    FailsOpen,
    #[error("a queue needs room, and more than its terminal reserve")]
    NoRoom,
    #[error("no hook is called at {0} yet")]
    NotLive(HookPoint),
    #[error("a package has at most hooks_max hooks")]
    TooMany,
    #[error("another hook is called {}", .0.as_str())]
    Duplicate(Name),
}

impl Coded for HookSpecError {
    fn code(&self) -> Code {
        match self {
            Self::NoTimeout => Code::HookTimeout,
            Self::NotInMatrix { .. } => Code::HookNotInMatrix,
            Self::ObserverActs => Code::HookObserverActs,
            Self::FailsOpen => Code::HookFailsOpen,
            Self::NoRoom => Code::HookQueue,
            Self::NotLive(_) => Code::PointNotLive,
            Self::TooMany => Code::LimitExceeded,
            Self::Duplicate(_) => Code::HookExists,
        }
    }
}

impl HookSpec {
    /// Whether the hook guards or changes something.
    pub fn is_security_relevant(&self) -> bool {
        self.point.is_security_critical()
            || self.mutation_rights.rights.iter().any(|c| *c != HookClass::Observe)
    }

    /// The rules of registration, in their order.
    pub fn validate(&self) -> Result<(), HookSpecError> {
        let rights = &self.mutation_rights.rights;
        if self.timeout.timeout_ms == 0 {
            return Err(HookSpecError::NoTimeout);
        }
        if let Some(class) = rights.iter().find(|class| !self.point.permits(**class)) {
            return Err(HookSpecError::NotInMatrix { point: self.point, class: *class });
        }
        if let HookExecution::NonBlocking { queue, .. } = &self.execution {
            if rights.iter().any(|class| *class != HookClass::Observe) {
                return Err(HookSpecError::ObserverActs);
            }
            if queue.terminal_reserve == 0 || queue.capacity <= queue.terminal_reserve {
                return Err(HookSpecError::NoRoom);
            }
        }
        if self.is_security_relevant() && self.failure == HookFailure::FailOpenObserveOnly {
            return Err(HookSpecError::FailsOpen);
        }
        Ok(())
    }
}
