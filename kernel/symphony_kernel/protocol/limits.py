"""Every limit of the system in one place, with its unit in its name.

This file, the README and the syscall table (`symphony_runtime/abi/table.toml`) tell what a program
may use. Only the operator's configuration can raise a limit above the value here.

Every number by which something is refused, cut off, ended or delayed is here and nowhere else. Its
name ends in _MAX or _MIN, its comment says what it bounds, and docs/reference/limits.md shows it
(`tools.limits_page`). Numbers with other names are defaults, or settings that modules share.
Settings of a single module, without an effect outside, are in that module.
"""

from typing import Final

# --- Pages and KV files (kernel) -----------------------------------------------------------------
PAGE_TOKENS: Final = 16  # entries in one physical page
KV_POOL_BYTES_DEFAULT = 2 << 30  # of host memory, for the CPU executor's page pool
KV_POOL_PAGES_MAX = 1 << 20  # of the device's pool
TENANT_PAGES_SHARE_MAX = 1.0  # of the pool; in a single-tenant server one tenant may fill it
# The default host tier is as large as the device's pool, but takes at most this share of the memory
# that is free when the kernel starts (`--host-pool-tokens`). The disk tier is off by default.
HOST_POOL_MEMORY_SHARE = 0.25
STALL_SECONDS = 2.0  # between two checks for stalls
AUDIT_SECONDS = 5.0  # between two audits of an idle kernel, at least
TOKENS_PAGES_A_FRAME = 3  # pages per frame, in addition, for files of which only tokens are kept
TOKENS_PAGES_MAX = 1 << 20  # of those pages
# A tenant may hold, in all tiers together, so many times the unused pages. So one tenant has at
# most 8/9 of the pages, two have 8/17 each, and another tenant always finds some.
TENANT_PAGES_TIMES_UNUSED = 8
PREFIX_CACHE_SHARE = 0.5  # of the pool, for the prefix cache; its pages are evicted when needed
PREFIX_CACHE_IDLE_SECONDS = 600  # without use; then a tenant's cached prefixes are evicted first
TENANT_FILES_MAX = 65_536  # live files, named and anonymous, of one tenant
INSTANCE_HANDLES_MAX = 4_096  # KV handles of one instance, and as many grants not taken yet
TENANT_HANDLES_MAX = 1 << 20  # of all its instances
LIST_ITEMS_MAX = 4_096  # named files of one kv_list: past it EFBIG; ask with a longer prefix
TENANT_LISTED_MAX = 4 * LIST_ITEMS_MAX  # names that one frame of a worker lists for a tenant, about
# Waiting calls of one throttled tenant. Above either bound the oldest are executed.
TENANT_HELD_CALLS_MAX = 65_536
TENANT_HELD_BYTES_MAX = 64 << 20  # of such calls
# Share of the processors for all tenants' messages, calls and own computing together, while
# processors are short. Steps need the rest, and only a part of the cost of calls is timed.
BESIDE_STEPS_SHARE = 0.2
SPENT_US_MAX = 1_000_000  # of one instance, in one report of a worker or the gateway
PACE_MS_MAX = 50  # for which a worker throttles a tenant before it asks again
REST_MS_MAX = 250  # for which the gateway throttles a tenant's compilers before it asks again
SPENT_TOLD_SECONDS = 0.01  # between two such reports, at least
PATH_BYTES_MAX = 1_024  # of a KV file's name
NAME_BYTES_MAX = 128  # of a grant, a channel, an entry, a program
EXTRACT_RANGES_MAX = 65_536  # (start, end) pairs of one kv_extract
FILE_ENTRIES_MAX = 1 << 20  # entries of one KV file; positions stay below the model's max_context
LINEAGE_ENTRIES_MAX = 1 << 19  # of all computations that one file's K and V depend on
LINEAGE_TENANT_ENTRIES_MIN = 1 << 21  # of all files of a tenant, at least
LINEAGE_TENANT_ENTRIES_TIMES = 16  # or so many times the entries of its page quota
LINEAGE_SPANS_MAX = 512  # of a lineage; above a bound see `kvfs.lineage.book`
# Share of the device that is kept free of unrecomputable KV for new requests, if the host tier has
# less space than that (see `kvfs.storage`).
UNRECOMPUTABLE_DEVICE_SHARE = 1 / 8
TENANT_NAMES_MAX = 16_384  # named files of one tenant
TENANT_DURABLE_BYTES_MAX = 16 << 30  # on disk, of its durable names; an operator may set it
TENANT_DISK_CALLS_MAX = 1_024  # saves, removals, first openings of one tenant that wait for disk
KV_HEADER_BYTES_MAX = 64 << 10  # of a KV file on disk
KV_LINEAGE_BYTES_MAX = 64 << 20  # of a file's lineage on disk
KV_CHUNK_BYTES_MAX = 1 << 20  # of a KV file in one frame between kernel and gateway
KV_TRANSFERS_MAX = 64  # uploads and downloads of KV files under way, of all tenants
TENANT_KV_TRANSFERS_MAX = 8  # of one tenant: past it 429
KV_TRANSFER_IDLE_SECONDS_MAX = 60  # without a chunk asked for or sent, after which it is dropped
# Of one request about a file's pages, its tokens or the prefix cache: it must not delay a step.
KV_VIEW_PAGES_MAX = 4_096  # pages of the file
KV_VIEW_NAMES_MAX = 512  # named files that it is compared with
KV_VIEW_TABLE_PAGES_MAX = 1 << 18  # pages of these files together
KV_VIEW_FILES_MAX = 16  # files that are named as sharing a page
KV_VIEW_PARTS_MAX = 64  # of a lineage
KV_VIEW_TOKENS_MAX = 4_096  # tokens of a file
PREFIX_VIEW_PAGES_MAX = 8_192  # pages of the prefix cache that are counted
PREFIX_VIEW_BRANCHES_MAX = 1_024  # ends of prefixes that are followed, those used last
PREFIX_VIEW_TOKENS_MAX = 32  # tokens that are shown of each part of a prefix
PREFIX_VIEW_DEPTH_DEFAULT = 16  # parts from the first token on
PREFIX_VIEW_DEPTH_MAX = 64  # the same, asked for
KV_FILE_KEEP_MS_MAX = 100 * 365 * 86_400_000  # `keep_ms` of a file that is put

# --- pred and generate (kernel) ------------------------------------------------------------------
PRED_TOKENS_MAX = 131_072  # tokens of one call
PRED_TREE_TOKENS_MAX = 256  # with `parents`: a tree is computed in one step
PRED_OPTIONS_BYTES_MAX = 1 << 20  # of a call's options
PRED_OPTIONS_CONTAINERS_MAX = 64  # lists and maps in them
PRED_RESULT_BYTES_MAX = 8 << 20  # of one call: bounds "logits" at "all"
PRED_TOP_MAX = 1_024  # k of {"top": k}
PRED_LOGPROBS_MAX = 20  # log-probabilities of a token
PRED_BIAS_MAX = 4_096  # entries of `bias`
GENERATE_AHEAD_DEFAULT = 8  # tokens that may be appended before the program has taken them
GENERATE_AHEAD_MAX = 1_024  # that a program may ask for
GENERATE_STOP_MAX = 1_024  # token ids of `stop`
INSTANCE_CALLS_PENDING_MAX: Final = 8_192  # calls of one instance that the kernel has not answered
LIP_CALL_BYTES_MAX: Final = 64 << 20  # arguments of such calls, of a run with its children

# --- Constraints (kernel) -------------------------------------------------------------------------
CONSTRAINT_BYTES_MAX = 256 << 10  # of the text of a schema, expression or grammar
# Limits of the checker's process for one grammar. llguidance's limits are in `grammar.source`.
CONSTRAINT_CPU_SECONDS_MAX = 2
CONSTRAINT_WALL_SECONDS_MAX = 60  # by the clock
CONSTRAINT_MEMORY_BYTES_MAX = 1 << 30  # of addresses
CONSTRAINT_STACK_BYTES_MAX = 8 << 20  # far less than the stacks of the kernel's threads
CONSTRAINT_WORDS_MAX = 1_024  # bytes of an error message
INSTANCE_CONSTRAINTS_MAX = 256  # handles of one instance
TENANT_COMPILES_MAX = 16  # of one tenant that wait to be compiled: past it EAGAIN
TENANT_GRAMMARS_MAX = 64  # compiled grammars of one tenant, cached or in use: past it EDQUOT
GRAMMARS_CACHED_MAX = 256  # of all tenants together
# Estimated memory of compiled grammars. Above it the least recently used one is released, and
# compiled again when it is used.
TENANT_GRAMMAR_BYTES_MAX = 192 << 20
GRAMMAR_BYTES_MAX = 1 << 30  # of all tenants together
GRAMMAR_IDLE_BYTES_MAX = 16 << 20  # of grammars that were not used for a while
# Estimated time of all masks of one step, if there is more than one row. Other rows wait for the
# next step.
MASKS_MS_MAX = 20.0
# Time to follow one text in one step. A longer text continues in the next step.
TEXT_MS_MAX = 10.0
# Time to compile one grammar in the kernel: past it EFBIG.
CONSTRAINT_BUILD_MS_MAX = 250.0
SINCE_TOKENS_MAX = 8_192  # that a text may have before its constraint's first use: past it EFBIG
TENANT_KEPT_TEXT_TOKENS_MAX = 65_536  # of a tenant's texts whose matchers are cached
KEPT_TEXT_TOKENS_MAX = 262_144  # of all tenants' texts together
FILE_TEXTS_MAX = 64  # constraints for which a KV file knows where their texts begin

# --- Adapters (gateway and kernel) ---------------------------------------------------------------
ADAPTER_CONFIG_BYTES_MAX = 64 << 10  # of an adapter's adapter_config.json
ADAPTER_HEADER_BYTES_MAX = 1 << 20  # of its weights' header: 200 layers take 0.4 MB
ADAPTER_RANK_MAX = 256  # of each of its products
ADAPTER_NAME_CHARACTERS_MAX = 64  # of a name
TENANT_ADAPTERS_MAX = 64  # kept: past it 429
TENANT_ADAPTERS_CEILING = 1_024  # that an operator may allow
# Of packed adapters in the kernel's memory. Deleted ones that KV files need count.
TENANT_ADAPTERS_LOADED_BYTES_MAX = 1 << 30
ADAPTERS_LOADED_BYTES_MAX = 4 << 30  # of all tenants together

# --- Batches (kernel) ----------------------------------------------------------------------------
STEP_TOKENS_MAX = 512  # new tokens of one step on a CPU
GPU_STEP_TOKENS_MAX = 8_192  # on a GPU, which needs many tokens to be busy
STEP_ROWS_MAX = 256  # sequences of one step
# How long a launch waits for requests that are about to come, as a share of the last step's time.
BATCH_WAIT_SHARE_MAX: Final = 0.33
BATCH_WAIT_MS_MAX: Final = 10.0  # and no longer
PREFILL_QUANTUM_TOKENS = 64  # of a prompt between two fairness decisions within a step
GPU_PREFILL_QUANTUM_TOKENS = 512  # likewise, on a GPU
# Time of a step that has prompts and other runs' decodes: it gets as many prompt tokens as fit. An
# operator may set it (`--max-decode-gap-ms`).
DECODE_GAP_MS_DEFAULT = 200.0
TENANT_WEIGHT_MAX = 1e6  # of a tenant's weight
TENANT_WEIGHT_MIN = 1e-6  # service is divided by it
PREFILL_TOKENS_MIN = 16  # prompt tokens in a step with decodes, however short the time is
PRESENT_MS: Final = 100.0  # a tenant is present for so long after its last work on the device
DECODING_MS_MAX: Final = 1_000  # a run counts as decoding for so long after its last result
PAGES_WAIT_MS_MAX = 50  # without any page that comes free, before a waiting pred gets ENOMEM

# --- Eviction and admission (kernel) --------------------------------------------------------------
KV_IDLE_MS = 100  # after its last use a file counts as in use for so long
KV_STUCK_MS = 2_000  # before a file from which no page could be evicted is tried again
KV_TAKEN_PAGES_MIN = 16  # evicted from one file at once, if it has so many
KV_WORTH_SECONDS = 1_000.0  # that a page is kept longer for each second that restoring it takes
KV_PRIORITY_DEFAULT = 4  # of 0 (evicted first) to KV_PRIORITY_MAX
KV_PRIORITY_MAX = 7  # evicted last
KV_KEEP_MS_MAX = 86_400_000  # for which a program may ask to keep a file on the device
KV_KEEP_SHARE = 0.25  # of the device's pages that a tenant may have, for all such files together
KV_AHEAD_MS_MAX = 2.0  # of loading pages in advance, between two steps
KV_AHEAD_PAGES_MIN = 64  # or so many pages
# How far, in tokens, a run may get ahead of one that waits for pages before it must wait, too; more
# if pages must be recomputed.
ADMISSION_SLICE_TOKENS = 512.0

DEVICE_PAUSE_MS_MAX: Final = 20.0  # between two steps; after a longer pause there was no work

# Look-ahead steps that the device may have at once (`scheduler.lookahead`).
LOOKAHEAD_STEPS_MAX: Final = 6
# Results of such steps may be delivered together, at most so late. An operator may set it.
DELIVERY_MS_DEFAULT = 25.0
DELIVERY_MS_MAX = 1_000.0  # that an operator may set
# Time of short steps that share one budget for prompts, where results are delivered together.
DELIVERY_BATCH_MS_MAX = 8.0

# --- A run (worker); each can be lowered by the run ----------------------------------------------
RUN_WALL_MS_MAX = 3_600_000
RUN_CPU_MS_MAX = 60_000
RUN_MEMORY_BYTES_MAX = 64 << 20
RUN_TOKENS_MAX = 1 << 24  # tokens computed
RUN_KV_TOKENS_MAX = 1 << 20  # KV entries held at once
RUN_INPUT_BYTES_MAX = 4 << 20
RUN_OUTPUT_BYTES_MAX = 8 << 20  # sum of all sends
RUN_LOG_BYTES_MAX = 256 << 10
LOG_LINE_BYTES = 16  # that each line counts in addition to its bytes
RUN_MESSAGES_MAX = 65_536
RUN_INBOX_BYTES_MAX = 4 << 20  # messages from the user that are not received yet
RUN_CHILDREN_MAX = 256  # live children below one run
RUN_CHILD_DEPTH_MAX = 8
RUN_TREE_MEMORY_BYTES_MAX = 4 * RUN_MEMORY_BYTES_MAX  # of a run and its children together
RUN_TICKETS_MAX = 8_192  # live ones of one instance
RUN_RESULT_BYTES_MAX = 64 << 20  # results of one instance's tickets that it has not taken
RUN_PRIORITY_MAX = 7  # each level doubles a run's share of its tenant's service
MESSAGE_BYTES_MAX = 1 << 20  # one send, one message, one channel item
SEND_WINDOW_BYTES = 64 << 10  # sent and not yet taken by a connected reader
SEND_AT_ONCE_BYTES_MAX = SEND_WINDOW_BYTES // 4  # of a message: a larger one waits for memory
# Of such messages in the gateway that are not stored yet, of all tenants. One tenant may hold as
# many bytes as it leaves to the others.
LARGE_SENDS_BYTES_MAX = 64 << 20
CREDIT_BYTES_MIN = SEND_WINDOW_BYTES // 4  # taken, before the gateway tells the worker

WAITS_TOLD_MS = 50  # of waiting for egress, before the worker tells the kernel

# --- The sandbox (worker) ------------------------------------------------------------------------
EPOCH_TICK_MS = 1.0  # a guest that computes yields at the next tick
TURN_MS_MAX = 4.0  # that guests run before the worker reads its links again
GUEST_STACK_BYTES = 256 << 10
FIBER_STACK_BYTES = 512 << 10  # guest stack plus the room that a host callback needs
TABLE_ELEMENTS_MAX = 65_536
TABLES_MAX = 4  # of one instance
CANCEL_MS_MAX = 100  # from the request to the end of the run
WORKER_INSTANCES_MAX = 12_000  # measured: 30,000 exhaust vm.max_map_count
WORKER_DESCRIPTORS_MAX = 256  # open at once: two links, and those of the event loop and the engine
# Threads of a worker's user. The system counts threads of all processes with the same user number,
# in other containers of the machine, too.
WORKER_THREADS_MAX = 1_024
TOKENIZE_BYTES_MAX = 1 << 20  # of one text
CHAT_TEXT_MAX = 8 << 20  # characters that a chat template makes of one conversation
CHAT_DEPTH_MAX = 32  # of maps and lists in one conversation
CHAT_CONTAINERS_MAX = 65_536  # maps and lists in one conversation
IOVECS_MAX = 1_024  # of one WASI write
# Calls without a reply, of one instance in a row: then it waits for the reply of one.
INSTANCE_CALLS_UNANSWERED_MAX = 128
RANDOM_BYTES_MAX = 1 << 16  # of one call
WAIT_TICKETS_MAX = RUN_TICKETS_MAX  # of one wait
# --- Programs (gateway) --------------------------------------------------------------------------
PROGRAM_BYTES_MAX = 16 << 20
PROGRAM_SOURCE_BYTES_MAX = 256 << 10  # of a program that is uploaded as source
PROGRAM_REASON_BYTES_MAX = 2_048  # of a language module that fails, or refuses a source
PROGRAM_FUNCTIONS_MAX = 50_000
# These are expensive for each instance, or for a worker that loads the program.
PROGRAM_TYPES_MAX = 16_384
PROGRAM_IMPORTS_MAX = 1_024  # of a module
PROGRAM_EXPORTS_MAX = 1_024  # likewise
PROGRAM_GLOBALS_MAX = 4_096  # likewise
PROGRAM_NAMES_BYTES_MAX = 128 << 10  # of its imports, and of its exports
PROGRAM_ELEMENTS_BYTES_MAX = 512 << 10  # of the initial elements of its tables
PROGRAM_FUNCTIONS_CEILING = 200_000  # that an operator may allow
PROGRAM_MANIFEST_BYTES_MAX = 32 << 10  # of the section symphony.manifest
SCHEMA_DEPTH_MAX = 32  # of schemas within schemas in a manifest
SCHEMA_STEPS_MAX = 200_000  # of one check of a value; a keyword at a value is one, about
MCP_SESSION_CHARACTERS_MAX = 128  # of a session id; a longer one cancels nothing
MCP_PROGRESS_BYTES_MAX = 4_096  # of a message that a progress notification repeats
TENANT_PROGRAMS_MAX = 1_000  # kept, and as many names of them: past it 429
TENANT_PROGRAMS_KEPT_BYTES_MAX = 2 << 30  # of their modules, likewise
TENANT_PROGRAM_VERSIONS_MAX = 20  # of one name: past it the least recently used goes
TENANT_PROGRAM_VERSIONS_CEILING = 100  # a listing has all of them
PROGRAM_VERSION_DIGITS_MIN = 8  # of a digest, to name a version
COMPILE_CPU_SECONDS_MAX = 30
COMPILE_CPU_SECONDS_CEILING = 600
COMPILE_WALL_TIMES_CPU = 2  # wall time of a compiler, as a multiple of its processor time
COMPILE_MEMORY_BYTES_MAX = 2 << 30  # of addresses, including Python's and the compiler's own
COMPILE_MEMORY_BYTES_MIN = 512 << 20  # with less, no program compiles
COMPILE_MEMORY_BYTES_CEILING = 16 << 30
COMPILES_AT_ONCE_MAX = 2  # of all tenants; of one tenant one program
# Compiling time that a tenant may use at once while other tenants have runs, and the share of the
# passing time that is added again. Above it its compilers get idle processors only, where the
# system supports that: so many at once, and for so long until they run normally.
COMPILE_BURST_SECONDS_MAX = 3
COMPILE_BURST_SECONDS_CEILING = 3_600
COMPILE_BURST_BACK_SHARE = 0.05
COMPILES_PATIENT_AT_ONCE_MAX = 1  # of those compilers: they may take long, but delay no others
COMPILE_PATIENCE_SECONDS_MAX = 20.0
COMPILE_RESTS_SECONDS_MAX = 20.0  # for which a compiler is stopped; no time limit counts it
WORKER_PROGRAMS_BYTES_MAX = 256 << 20  # of code that no run uses, before the oldest is unloaded

# --- HTTP (gateway) ------------------------------------------------------------------------------
HTTP_CONNECTIONS_MAX = 16_384  # open at once, or what the system's limit on descriptors allows
HTTP_DESCRIPTORS_KEPT = 512  # of that limit, for all other descriptors of the gateway
# From connecting, or from the last response, to a request's whole head. Proxies expect that idle
# connections stay open for a minute.
HTTP_HEAD_SECONDS_MAX = 75.0
# A tenant may have so many times the unused connections: one tenant has at most 4/5 of them.
TENANT_CONNECTIONS_TIMES_UNUSED = 4
TENANT_PASS_SECONDS = 2e-3  # of one tenant in one pass of the gateway's event loop, about
RUNS_LIVE_MAX = 8_192  # of the server: past it a new run gets 503 with Retry-After
TENANT_MEMORY_TOTAL_BYTES_MAX = 8 << 30  # of linear memory and tables, in one worker
TENANT_RUNS_LIVE_MAX = 4_096  # of one tenant: past it 429
TRACE_EVENTS_MAX = 16_384  # of one run's calls, and as many of its preds' steps: the last ones
TRACE_BUNDLE_EVENTS = 256  # events that are sent together
TRACE_PRED_TOKENS_MAX = 1_024  # of one pred, and of its file before it: the last ones
TRACE_ALTERNATIVES_MAX = 8  # best tokens in place of the chosen one, as far as they were asked for
TRACE_FILES_MAX = 4_096  # of one run whose preds are told to follow each other: the last used
TRACE_EVENT_BYTES = 64  # of an event's tokens and results, that count as one more event
TRACE_BUNDLE_MS_MAX = 250  # after which fewer events are sent
TENANT_KEYS_MAX = 256  # of one tenant, or of the operators
KEY_GRACE_MS_MAX = 30 * 86_400_000  # for which a rotated key stays valid
TENANT_TRACED_RUNS_MAX = 64  # live ones
TENANT_BODY_BYTES_MAX = 256 << 20  # of request bodies in memory at once: past it 429
BODY_BYTES_MAX = 2 << 30  # of all tenants together: past it 503
# Cost of a body's values: a key counts 16, a list or object 4, any other 1. Past it 413: parsing
# more would delay all other requests by more than about 50 ms.
JSON_COST_MAX = 1 << 19
JSON_DEPTH_MAX = 200  # of lists and objects within one another in a body: past it 400
RUN_BODY_BYTES_MAX = 2 * RUN_INPUT_BYTES_MAX + (64 << 10)  # JSON escapes make an input longer
SMALL_BODY_BYTES_MAX = 64 << 10  # of a secret, an alias, or an administrator's request: past it 413
TLS_HANDSHAKE_SECONDS_MAX = 10.0  # after which a connection without it is closed
CANCEL_SECONDS_MAX = 10.0  # that a cancellation's response waits for the end of the run
TENANT_RUNS_KEPT_MAX = 10_000  # ended runs; above it the oldest are deleted
TENANT_KEPT_BYTES_MAX = 1 << 30  # of their stored messages and logs, likewise
DISK_RESERVE_BYTES_MIN = 32 << 20  # of the data directory's disk, but at most a quarter of it
DISK_RESERVE_BYTES_MAX = 256 << 20  # likewise, unless an option says more
RUN_KEPT_SECONDS_MAX = 7 * 86_400  # after its end
RUN_INPUT_KEPT_BYTES_MAX = 64 << 10  # of a run's input, to be kept with it: a longer one is not
RUN_CHILDREN_KEPT_MAX = 100  # children of a run that its listing shows: the first ones
RUN_CHANGES_KEPT_MAX = 2_048  # of a tenant's runs, for readers of their stream: the last ones
RUN_CHANGES_KEPT_SECONDS = 60.0  # after its last reader, so that it can resume
CHANNEL_ITEMS_MAX = 1_024  # that wait in one channel
TENANT_CHANNELS_MAX = 1_024
TENANT_CHANNEL_BYTES_MAX = 64 << 20  # items that no run has taken yet, of all its channels
CHANNEL_SEND_MS_MAX = 5_000  # that a send to a full channel waits
QUEUE_SECONDS_MAX = 30.0  # expected wait of a new run for its first tokens: past it 503, or 429
MEMORY_FREE_BYTES_MIN = 128 << 20  # of the machine or its cgroup: below it a new run is refused
RETRY_SECONDS_MAX = 300  # of any Retry-After
OWN_WORKER_IDLE_SECONDS = 60.0  # without a run, before a tenant's own worker ends
ADDRESS_CONNECTIONS_MAX = 256  # from one address, without a valid key so far
SLOW_GRACE_SECONDS = 30.0  # that a body may take longer than at the rate below
SLOW_BYTES_A_SECOND_MIN = 4_096  # of a body: slower ones are cut off after the grace
SLOW_READER_SECONDS = 30.0  # in which a client reads no byte of a response: past it cut off
WRITE_BYTES_HIGH = 16 << 10  # of a response that wait in the gateway, before more is made
UNSENT_BYTES_MAX = 64 << 10  # and in the system's socket buffer
TENANT_UNREAD_BYTES_MAX = 64 << 20  # of all responses to a tenant: past it its readers are cut off
TENANT_REPLAY_BYTES_MAX = 4 << 20  # of stored events in memory, for all readers of a tenant
REPLAY_BYTES_MAX = 64 << 20  # for all tenants; above it each still keeps one row
IDEMPOTENCY_KEY_BYTES_MAX = 255  # of an Idempotency-Key
IDEMPOTENCY_SECONDS = 86_400  # for which a key is known
IDEMPOTENCY_ELSEWHERE_SECONDS_MAX = 30.0  # that a request waits for another gateway's with it
TENANT_IDEMPOTENCY_KEYS_MAX = 10_000  # of one tenant in that time: past it 429
ATTACH_QUERY_BYTES_MAX = 4_096  # of `limits` in the query of an attached program
PAGE_ITEMS_DEFAULT = 50  # of a listing
PAGE_ITEMS_MAX = 500  # that a request may ask for
# --- The OpenAI routes (gateway) -----------------------------------------------------------------
OPENAI_COMPLETION_TOKENS_DEFAULT = 16  # OpenAI's
OPENAI_DRAFT_TOKENS_MAX = 64  # of --draft-tokens: the results that a ticket may have ahead
OPENAI_STOPS_MAX = 16  # texts, and tokens, that end a completion
OPENAI_STOP_CHARACTERS_MAX = 1_024  # of each text
OPENAI_METADATA_MAX = 16  # entries, which the server ignores
OPENAI_METADATA_CHARACTERS_MAX = 64 + 512  # of a name with its text
OPENAI_MODELS_SHOWN_MAX = 500  # of the tenant's programs, among the models
OPENAI_TOOLS_MAX = 128  # of a request
OPENAI_PROGRAM_CHOICES_MAX = 128  # answers of a tenant's program to one request
OPENAI_PROGRAM_RECORD_BYTES_MAX = 64 << 10  # of a record that such a program sends
OPENAI_PROGRAM_CALLS_MAX = 128  # of tools, in one of its answers
OPENAI_PROGRAM_LOGPROBS_MAX = 2_048  # of a record, with the likeliest alternatives
OPENAI_PROGRAM_MESSAGE_CHARACTERS_MAX = 4_096  # of the message with which it refuses a request
OPENAI_PROGRAM_CODE_CHARACTERS_MAX = 256  # of the code of a refusal, and of its param
OPENAI_TURNS_MAX = 1_000  # of a conversation of kept responses
OPENAI_REFERENCES_MAX = 100  # to items of kept responses, in one request
OPENAI_ITEMS_MAX = 100  # of a page of input items
OPENAI_CUSTOM_TOOL_NAME_CHARACTERS_MAX = 64  # its namespace included
OPENAI_INPUTS_MAX = 2_048  # texts of a request for embeddings, scores or ranks
GUIDED_CHOICES_MAX = 1_024  # of `guided_choice`
OPENAI_COMPILES_WAIT_MS_MAX = 10_000  # for which a request's schema is retried at EAGAIN: then 503

# --- Files and batches of requests (gateway) -----------------------------------------------------
FILE_BYTES_MAX = 200 << 20  # of an uploaded file: past it 413
TENANT_FILES_KEPT_MAX = 1_000  # uploaded, and of batches' results: past it 429
TENANT_FILES_KEPT_BYTES_MAX = 2 << 30  # likewise
FILE_NAME_CHARACTERS_MAX = 255  # of an uploaded file
FORM_FIELDS_MAX = 16  # of an upload
FORM_FIELD_BYTES_MAX = 1_024  # of each but its file
FILE_KEPT_SECONDS_MIN = 3_600  # of `expires_after`
FILE_KEPT_SECONDS_MAX = 30 * 86_400  # likewise
BATCH_LINES_MAX = 50_000  # of an input file
BATCH_LINE_BYTES_MAX = 1 << 20  # of one of them
BATCH_CUSTOM_ID_CHARACTERS_MAX = 512  # of its name
BATCH_SECONDS_MAX = 86_400  # after which a batch expires
BATCH_ERRORS_MAX = 50  # that a batch shows of its input file
BATCH_REQUEST_FAILURES_MAX = 4  # of one request or its run, before the error is the result
BATCH_RESUMES_MAX = 10  # after deaths of its gateway, without a result in between
TENANT_BATCHES_LIVE_MAX = 32  # batches that have not ended: past it 429
TENANT_BATCH_REQUESTS_MAX = 8  # of all its batches, that run at once
TENANT_BATCHES_KEPT_MAX = 1_000  # ended ones; above it the oldest are deleted

# --- Egress (gateway): tools and http ------------------------------------------------------------
TENANT_OUTSIDE_CALLS_MAX = 512  # of one tenant under way: past it EAGAIN
OUTSIDE_ITEMS_MAX = 4_096  # of one list or map in a program's request
OUTSIDE_CONTAINERS_MAX = 65_536  # lists and maps of such a request
TOOL_SERVERS_MAX = 64  # that an operator may attach
TOOL_CALLS_AT_ONCE_DEFAULT = 16  # of one tenant at one server; others wait
TOOL_CALLS_AT_ONCE_MAX = 1_024  # that an operator may set
TOOL_CALL_MS_DEFAULT = 60_000  # an operator may set it for a server, a program may ask for less
TOOL_CALL_MS_MAX = 3_600_000  # that may be set
TOOL_START_SECONDS_MAX = 30  # from starting or calling a server to its list of tools
TOOL_STOP_SECONDS_MAX = 1.0  # for a server whose input has ended, and again after SIGTERM
TOOL_RESTART_SECONDS_MIN = 0.2  # before an ended server is started again; doubled each time
TOOL_RESTART_SECONDS_MAX = 30.0  # at most
TOOL_REQUEST_BYTES_MAX = 256 << 10  # name and arguments
TOOL_RESULT_BYTES_MAX = 1 << 20  # of one call's result
TOOL_MESSAGE_BYTES_MAX = 4 << 20  # of one message of a server: text is longer as JSON
TOOL_ARGUMENTS_DEPTH_MAX = 32  # of maps and lists in a call's arguments
SERVER_TOOLS_MAX = 512  # of one server
TOOL_NAME_BYTES_MAX = 256  # the server's name, a dot, the tool's
TOOLS_BYTES_MAX = 1 << 20  # of a tenant's list
HTTP_REQUEST_BYTES_MAX = 1 << 20  # method, URL, headers and body
HTTP_URL_BYTES_MAX = 8_192  # of a request's URL
HTTP_HEADERS_MAX = 64  # of a request
HTTP_HEADER_BYTES_MAX = 32 << 10  # of a request's or a response's, together
HTTP_HEADER_LINES_MAX = 128  # of a response
HTTP_HEADER_LINE_BYTES_MAX = 8_190  # each
HTTP_BODY_BYTES_MAX = 1 << 20  # of a response
HTTP_MS_DEFAULT = 30_000  # from the call to the last byte of the body, redirects included
HTTP_MS_MAX = 120_000  # that a program may ask for
HTTP_REDIRECTS_MAX = 5  # that one call follows
HTTP_RULES_MAX = 256  # of one operator
TENANT_SECRETS_MAX = 64  # of one tenant
SECRET_BYTES_MIN = 8  # shorter ones could not be found reliably in a response
SECRET_BYTES_MAX = 8_192  # of one
SECRET_HOSTS_MAX = 32  # to which one secret may be sent
REQUEST_SECRETS_MAX = 8  # in one request: its response is searched for each
HTTP_INFORMATIONAL_MAX = 8  # responses of status 1xx before the final one
TENANT_HTTP_BYTES_MAX = 32 << 20  # bodies of a tenant's calls under way: past it EAGAIN
TENANT_LOOKUPS_MAX = 4  # names of one tenant that are looked up at once; more wait
LOOKUPS_MAX = 64  # of all tenants

# --- Links ---------------------------------------------------------------------------------------
FRAME_BYTES_MAX = 96 << 20  # the artefact of the largest program fits
WORKER_FRAME_BYTES_MAX = 32 << 20  # of one frame from a worker
REPLIES_BYTES_MAX = 16 << 20  # results in one frame of the kernel, unless one result is larger
HELLO_SECONDS_MAX = 10  # from connecting to the `Hello`
WORKER_BACKLOG_BYTES_MAX = 1 << 30  # of replies that a worker has not read, before it is cut off
KERNEL_WAIT_SECONDS_MAX = 30  # for a restarting kernel, before a request gets 503
SESSION_ID_BYTES = 16
SESSION_KEPT_FRAMES = 64  # sent, before a receipt is asked for
SESSION_KEPT_BYTES = 256 << 10  # likewise
SESSION_UNREAD_BYTES_MAX = 4 << 20  # above it no receipt is sent; the peer asks again
SESSION_RECEIPT_SECONDS = 0.25  # after a frame, a receipt is asked for anyway
HANG_SECONDS = 30.0  # without a heartbeat, before a role is killed and started again
DRAIN_SECONDS_MAX = 10  # from SIGTERM to SIGKILL

assert PRED_TREE_TOKENS_MAX <= STEP_TOKENS_MAX, "a tree must fit into one step"
assert PRED_RESULT_BYTES_MAX <= RUN_RESULT_BYTES_MAX
assert GUEST_STACK_BYTES < FIBER_STACK_BYTES
assert MESSAGE_BYTES_MAX <= RUN_INBOX_BYTES_MAX
assert MESSAGE_BYTES_MAX <= LARGE_SENDS_BYTES_MAX // 2
assert PRED_RESULT_BYTES_MAX + REPLIES_BYTES_MAX < FRAME_BYTES_MAX
assert PRED_RESULT_BYTES_MAX < WORKER_FRAME_BYTES_MAX < FRAME_BYTES_MAX
