//! The stable error codes, each with what to do about it. Every operation has its own error enum;
//! each variant maps to one code here, Python raises it under that code, docs/errors has its page.

/// An error that has a stable code.
pub trait Coded: std::error::Error {
    fn code(&self) -> Code;
}

macro_rules! codes {
    ($($name:ident = $token:literal, $fix:literal;)*) => {
        /// A stable error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code { $($name),* }
        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name),*];
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $token),* }
            }
            /// What to do about it, in one sentence.
            pub fn fix(self) -> &'static str {
                match self { $(Code::$name => $fix),* }
            }
        }
    };
}

codes! {
    Internal = "internal", "Report it, with what you did; nothing was written.";

    // Canonical bytes.
    NotFinite = "not_finite", "Replace NaN and infinities by null or a string before you pass the value.";
    IntegerTooLarge = "integer_too_large", "Pass integers beyond 2^53-1 as strings.";
    NumberOutOfRange = "number_out_of_range", "Pass numbers beyond a double's range as strings.";
    LoneSurrogate = "lone_surrogate", "Decode the text properly; half of a surrogate pair is not a character.";
    DuplicateKey = "duplicate_key", "Give each key of an object once.";
    TooDeep = "too_deep", "Flatten the value; 64 levels is the limit.";
    TooLarge = "too_large", "Store large values as artifacts and pass a reference.";
    TooManyValues = "too_many_values", "Store large values as artifacts and pass a reference.";
    KeyNotString = "key_not_string", "Use string keys in objects.";
    NotJson = "not_json", "Pass only dict, list, tuple, str, int, float, bool and None, or convert with holdfast.values.to_json.";
    BadJson = "bad_json", "Pass one complete JSON document in UTF-8.";
    BadDomain = "bad_domain", "Use 1 to 64 characters of a-z, 0-9, '.', '_', '-' and '/'.";

    // Ids, records, contents, contracts.
    BadId = "bad_id", "Pass the id as Holdfast printed it.";
    MissingField = "missing_field", "Add the field; docs/FORMAT.md lists the fields of each kind.";
    UnknownField = "unknown_field", "Remove the field, or use a Holdfast that knows it.";
    WrongType = "wrong_type", "Give the field the type that docs/FORMAT.md lists; omit what is absent.";
    UnknownToken = "unknown_token", "Use one of the tokens that the message lists.";
    BadValue = "bad_value", "Give a value within the bounds that the message names.";
    UnknownKind = "unknown_kind", "Use a kind of docs/FORMAT.md, or x.<vendor>.<name> for your own.";
    NewerFormat = "newer_format", "Use the Holdfast version that wrote this stream, or a newer one.";
    NotCanonical = "not_canonical", "Store and send a record's text as it was written.";
    RecordTooLarge = "record_too_large", "Put large values into contents or artifacts.";
    ContentErased = "content_erased", "The value was erased on purpose and cannot be had again.";
    ContentForged = "content_forged", "Run holdfast verify: what is stored is not what was recorded.";
    HookTimeout = "hook_timeout", "Give the hook a timeout of at least one millisecond.";
    HookNotInMatrix = "hook_not_in_matrix", "Register the hook at a point that allows this class of response.";
    HookObserverActs = "hook_observer_acts", "Make the hook blocking, or let it only observe.";
    HookFailsOpen = "hook_fails_open", "Choose deny, interrupt_run or fail_run as its failure policy.";
    HookQueue = "hook_queue", "Give the queue a capacity above its terminal reserve, and a reserve above zero.";

    PointNotLive = "point_not_live", "Register the hook at a point that docs/HOOKS.md lists as live.";
    HookExists = "hook_exists", "Give each hook an id of its own.";

    // The chain.
    RecordUnreadable = "record_unreadable", "The record was altered or damaged: compare with a backup or a bundle.";
    RecordMoved = "record_moved", "A record of another stream stands here: compare with a backup or a bundle.";
    RecordMissing = "record_missing", "Records were removed, added or reordered: compare with a backup or a bundle.";
    ChainBroken = "chain_broken", "This record or the one before it was altered: compare with a backup or a bundle.";
    TimeWentBack = "time_went_back", "The record was altered or written by something else than Holdfast.";
    RecordIllegal = "record_illegal", "The record cannot follow what precedes it: it was not written by Holdfast.";
    HeadMismatch = "head_mismatch", "Records are missing at the end, or the head belongs to another copy.";

    // Evidence.
    BundleAltered = "bundle_altered", "The bundle is not as it was exported: get it again from whoever made it.";
    FactsForged = "facts_forged", "The summary says something else than the records: trust the records only.";
    ProofInvalid = "proof_invalid", "The bundle is not under this seal: export it again, or ask for the seal it was made with.";
    BadKey = "bad_key", "Pass the whole line that holdfast keys generate or publish has printed.";
    BadSeal = "bad_seal", "Pass a checkpoint as holdfast journal seal wrote it.";
    SealUnsigned = "seal_unsigned", "Check with the key that has signed the seal, or get a seal that this key has signed.";
    SealForged = "seal_forged", "The seal was altered, or another key has signed it: get it again from where it was published.";
    SealMismatch = "seal_mismatch", "What was sealed was altered or removed: compare with a backup or a bundle.";

    // State.
    StateNull = "state_null", "Delete the member instead of setting it to null.";
    StateNotObject = "state_not_object", "Make the state a JSON object.";
    StateConflict = "state_conflict", "Read the state again and make the patch for its newest version.";
    PatchNotObject = "patch_not_object", "Pass a JSON object.";

    // Commands on runs.
    RunExists = "run_exists", "Use a new run id, or the run that has this one.";
    NoSuchRun = "no_such_run", "Check the id, and that the store is the right one.";
    NoSuchStep = "no_such_step", "Check the id against the run's steps.";
    NoSuchCall = "no_such_call", "Check the id against the step's calls.";
    RunEnded = "run_ended", "Start a new run; a failed one can be retried with runs retry.";
    StaleFence = "stale_fence", "Stop this work: another worker has the step, or it has ended.";
    StepStatus = "step_status", "Look at the step's status; another worker may have been faster.";
    StepBlocked = "step_blocked", "Wait until the steps that it comes after have completed.";
    NotBefore = "not_before", "Claim it again when it is due.";
    KeyBusy = "key_busy", "Wait until the other step under this concurrency key is done.";
    RunPaused = "run_paused", "Unpause the run first.";
    NotPaused = "not_paused", "Nothing to do: the run is not paused.";
    CancelRequested = "cancel_requested", "Stop the work and confirm the cancellation.";
    NotCancelRequested = "not_cancel_requested", "Complete, fail or release the step instead.";
    LeaseLive = "lease_live", "Wait until the lease has run out, or its worker's process is gone.";
    LimitExceeded = "limit_exceeded", "Stay within the bound that the message names; docs/LIMITS.md lists them.";
    Unenforceable = "unenforceable", "Leave the limit out; a sandbox bounds the memory of what runs in it.";
    NothingToWaitFor = "nothing_to_wait_for", "Name at least one thing to wait for.";
    WaitOver = "wait_over", "Go on: what you would wait for is already there.";
    NotWaiting = "not_waiting", "Look at what the step waits for.";
    NotAnswered = "not_answered", "Answer it first: decide, signal, or wait until it is due.";
    OpenWrite = "open_write", "Settle the write, or resolve its doubt, before the step ends or waits.";
    BadStep = "bad_step", "Give the step a new id, and only existing steps in after.";
    NoSteps = "no_steps", "Give the run at least one step.";
    KindReserved = "kind_reserved", "Append note.logged, cost.recorded, artifact.created, checkpoint.created or x.<vendor>.<name>.";
    ClaimNeeded = "claim_needed", "Pass the claim under which you work.";
    RunOpen = "run_open", "Wait until the run has ended, or cancel it.";
    OpenForks = "open_forks", "Wait until the run's forks have ended.";
    NotFailed = "not_failed", "Only failed runs can be retried; start or fork a run instead.";
    BadForkPoint = "bad_fork_point", "Fork at a record before the run's end, and not between a write's start and its outcome, or while a child is open.";
    Misaddressed = "misaddressed", "Deliver the envelope to the run that it names.";
    NoSuchChild = "no_such_child", "Only a running child of this run can end.";
    ChildExists = "child_exists", "Give the child a new run id.";
    BudgetExceeded = "budget_exceeded", "Give the child less, or the run a larger budget.";
    BudgetUnlimited = "budget_unlimited", "Name accounts that the run's budget bounds, and how much more of each: holdfast budget show lists them.";
    BadWait = "bad_wait", "Name what the step waits for: a subject, a call, or for a timer when it fires.";
    NotAPerson = "not_a_person", "Let a person decide this.";
    NotAWorker = "not_a_worker", "Claim steps as a worker.";
    DeadlineNotDue = "deadline_not_due", "Wait for the deadline, or cancel the run.";
    IdempotencyConflict = "idempotency_conflict", "Use another key, or the tool and the arguments that the key was first used with.";
    KeyNeeded = "key_needed", "Give the call a key: in an attached step it is what a call is known by.";
    KeyForgotten = "key_forgotten", "Look at what was done outside; to do it once more, use another key.";
    ForkWouldRepeat = "fork_would_repeat", "Fork with effects='perform' if it is to be done once more, or leave it out.";
    BadCall = "bad_call", "Report it: the runtime asked for something that a call of this kind does not do.";
    // The runtime.
    AgentExists = "agent_exists", "Give each agent and each step function a name of its own.";
    BadAgent = "bad_agent", "Make the context the first parameter, name the others, and allow at least one attempt.";
    NoSuchAgent = "no_such_agent", "Register it with rt.agent or rt.step in the program that runs this.";
    NoSuchRuntime = "no_such_runtime", "Name the module and the runtime in it: holdfast worker app.agents:rt.";
    ExtraMissing = "extra_missing", "Install what the message names.";
    ExportFailed = "export_failed", "Look at what the message names and export again: the same spans have the same ids.";
    BadPack = "bad_pack", "Correct the place that the message names; docs/LINT.md lists the words.";
    BadInput = "bad_input", "Pass what the agent's parameters take; secrets are for tools.";
    RunFailed = "run_failed", "Look at run.error and at holdfast runs show; rt.retry opens it again.";
    RunCancelled = "run_cancelled", "Start another run: a cancelled one stays so.";
    RunNotEnded = "run_not_ended", "See run.waiting_on for who can help, then rt.resume or a worker goes on.";
    NothingToDecide = "nothing_to_decide", "Look at run.waiting_on: only a divergence or a changed package is decided so.";
    NoSuchArtifact = "no_such_artifact", "List them with rt.artifacts.list; one with a uri is kept elsewhere.";
    OffsetBack = "offset_back", "Go on from the newest checkpoint of the stream and consumer.";
    CallBusy = "call_busy", "Wait for the call that is being made under this key.";
    CallInBody = "call_in_body", "Make the call in the agent's own code, before or after, and hand the body what it needs.";
    StepTimeout = "step_timeout", "Look at what the step waits for outside of ctx, or give it a longer step_timeout.";
    NotRunning = "not_running", "Report the outcome of a call that was sent off, once.";
    OtherDispatch = "other_dispatch", "Report about the newest dispatch of the call.";
    NotInDoubt = "not_in_doubt", "Resolve only calls that are in doubt; holdfast effects list shows them.";
    PermitMayAct = "permit_may_act", "Wait until the permit can no longer act, or force it if you know better.";
    NoSuchApproval = "no_such_approval", "Check the id against holdfast approvals list.";
    ApprovalOver = "approval_over", "Nothing to do: the request was decided, or is no longer asked.";
    ApprovalExpired = "approval_expired", "Let the run ask again; nobody decided in time.";
    DecisionNotAllowed = "decision_not_allowed", "Decide in one of the ways that the request allows.";
    NotAnApprover = "not_an_approver", "Let somebody decide who has the role in the active policy.";
    SelfApproval = "self_approval", "Let a person outside of agents, tools and hooks decide.";
    AlreadyVoted = "already_voted", "One person has one vote.";
    NoSuchGrant = "no_such_grant", "Check the id against the run's grants.";
    NoSuchSession = "no_such_session", "Make the session first with store.create_session, and the run in it.";
    BadScope = "bad_scope", "Say for how many uses, until when and for which arguments the session may go on.";
    EditDenied = "edit_denied", "Choose arguments that the active policy does not deny.";
    NoSuchCapability = "no_such_capability", "List what the run holds with holdfast capabilities.";
    CapabilityExceeded = "capability_exceeded", "Ask for no more rights than the capability has; handing on needs the right grant.";
    SandboxExists = "sandbox_exists", "Register one sandbox for a runtime, by the decorator or as Runtime(sandbox=...).";
    SandboxMissing = "sandbox_missing", "Give the gateway a sandbox, or register the tool with sandbox='preferred'.";
    SandboxUnavailable = "sandbox_unavailable", "Install what the message names, or use another sandbox.";
    SandboxFailed = "sandbox_failed", "Look at the body: its process ended without an answer.";
    SecretValue = "secret_value", "Pass secrets only to parameters of tools that are declared as hf.Secret.";
    SqlInTransaction = "sql_in_transaction", "Commit or roll back first: hf.sql.once has to own the transaction.";
    SqlUnsupported = "sql_unsupported", "Use a connection of sqlite3 or psycopg.";
    SqlInDoubt = "sql_in_doubt", "Look at the database whether the work was committed, and resolve the call's doubt.";
    BadSchema = "bad_schema", "Give a JSON Schema that is one, without references to other documents.";
    BadTool = "bad_tool", "Declare the tool as its message says; docs/GATEWAY.md lists what a tool may declare.";
    ToolExists = "tool_exists", "Give the tool another name.";
    NoSuchTool = "no_such_tool", "Register the tool with this gateway, or pass the tool itself.";
    EffectRequired = "effect_required", "Say what the tool does to the world: effect='pure', 'read' or 'write'.";
    BadArguments = "bad_arguments", "Pass what the tool's signature declares.";
    BadPolicy = "bad_policy", "Correct the line that the message names; docs/GATEWAY.md lists the words.";
    Denied = "denied", "Look at the reasons: a hook, a rule or a person said no.";
    BudgetRefused = "budget_refused", "Give the run a larger budget, or let it use less.";
    EffectFailed = "effect_failed", "Look at the message: the tool says that it happened and failed.";
    NoEffect = "no_effect", "Try again: it did not happen.";
    PermitExpired = "permit_expired", "Try again: the body could not begin in time, so it did not happen.";
    ToolTimeout = "tool_timeout", "Give the tool more time, or look at what it waits for.";
    OutputInvalid = "output_invalid", "Correct what the tool returns or declares; it happened, and is not repeated.";
    ResultUnrecordable = "result_unrecordable", "Return what JSON can say; it happened, and is not repeated.";
    Compensated = "compensated", "Nothing to do: the effect was undone.";
    ExecutorExhausted = "executor_exhausted", "Look at the bodies that do not end; restart the process.";
    KeyConflict = "key_conflict", "Use another key, or the agent and the input that the key was first used with.";

    // The store.
    BadUrl = "bad_url", "Use a folder's path, sqlite:///path, memory: or postgresql://user@host/database.";
    NoSuchStore = "no_such_store", "Check the path, or open it without read_only to make a store there.";
    NotAStore = "not_a_store", "Choose an empty folder, or the folder of a store.";
    StoreUnreachable = "store_unreachable", "See that the server runs and can be reached; ask again when it does.";
    StoreLogin = "store_login", "Check user, password and the server's rules for who may come from where.";
    StoreTls = "store_tls", "Name the server's certificate authority with sslrootcert, or switch encryption off with sslmode=disable.";
    OldServer = "old_server", "Use PostgreSQL 13 or newer.";
    NewerStore = "newer_store", "Use the Holdfast version that wrote this store, or a newer one.";
    MigrationNeeded = "migration_needed", "Stop the older processes, then run holdfast migrate.";
    MigrationChanged = "migration_changed", "Restore the store from a backup, or use the Holdfast that made it.";
    NetworkFilesystem = "network_filesystem", "Put the store on a local disk, or use PostgreSQL for many machines.";
    ReadOnlyStore = "read_only_store", "Open the store for writing, in a folder that may be written to.";
    NoPermission = "no_permission", "Give the user who runs this the right to read and write the folder.";
    DiskFull = "disk_full", "Make room on the disk and try again; nothing was written.";
    StoreBusy = "store_busy", "Wait for the process that the message names, or stop it.";
    StorePoisoned = "store_poisoned", "Run holdfast doctor on the folder: it checks what is on the disk and clears the mark.";
    StoreReplaced = "store_replaced", "Use holdfast sql to look into a live store; close this handle and run holdfast doctor.";
    StoreTruncated = "store_truncated", "Records that were acknowledged are missing at the end: restore a backup, or accept the loss with holdfast doctor --accept-loss.";
    StoreCorrupt = "store_corrupt", "Run holdfast verify and holdfast doctor; restore a backup if the journal is damaged.";
    StoreClosed = "store_closed", "Open the store again.";
    StoreForked = "store_forked", "Open the store again in the forked child; a handle belongs to the process that opened it.";
    StoreFailed = "store_failed", "Look at the disk and the system's log, then run holdfast doctor.";
    OtherBlobs = "other_blobs", "Open the store with the blobs= that it was made with.";
    NoSuchBlob = "no_such_blob", "Check the reference; blobs that nothing refers to are collected.";
    BlobForged = "blob_forged", "Run holdfast verify: what is stored is not what was put there.";
    BadSql = "bad_sql", "Send one reading statement (select); docs/STORE.md lists the tables.";
    TargetExists = "target_exists", "Name a folder that does not exist yet.";
    BadBackup = "bad_backup", "Use a backup that holdfast backup made, whole.";
    RowsDiffer = "rows_differ", "Run holdfast doctor --rebuild: the rows are made anew from the journal.";
    ContentLost = "content_lost", "A value is gone that nobody erased: restore a backup if you need it.";

    BadEndReason = "bad_end_reason", "Use killed, deadline, quota or shutdown; cancel and complete have commands of their own.";
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
