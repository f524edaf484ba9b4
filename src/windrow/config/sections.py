"""The sections of a run's configuration: each key, its type and its default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from windrow.records import Capture, Json

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Weight = Annotated[float, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class TasksConfig(_Section, frozen=True):
    path: str | None = None
    source: str | None = None
    split: str | None = None
    limit: Positive | None = None
    shuffle: int | None = None
    skip_invalid: bool = False
    max_row_mb: Annotated[int, msgspec.Meta(ge=1, le=64)] = 16
    map: dict[str, str] = {}


class RangeConfig(_Section, frozen=True):
    """A range of difficulties, both ends included, and how much of a draw is of it."""

    range: tuple[float, float]
    weight: Annotated[float, msgspec.Meta(ge=0)]


class DrawConfig(_Section, frozen=True):
    """Some of the tasks, by chance: `n` of all alike, or by the weights of ranges of difficulty."""

    how: Literal["uniform", "ratio"] | None = None
    n: Positive | None = None
    seed: NotNegative | None = None  # None: made from the names of the source and the split
    ratio: dict[str, RangeConfig] = {}


class BlocklistConfig(_Section, frozen=True):
    """Domains whose tasks are left out of training, for some hours after they were blocked; `at` is the time to go by."""

    path: str | None = None
    hours: Annotated[float, msgspec.Meta(gt=0)] = 12.0
    at: str | None = None  # None: now


class DatasetConfig(_Section, frozen=True):
    """A task file of a split. `num_repeats`: rollouts a task, where `samples` says none."""

    path: str
    split: Literal["train", "validation", "benchmark"]
    source: str | None = None
    agent: str | None = None
    num_repeats: Positive | None = None


class Sampling(_Section, frozen=True, omit_defaults=True):
    """What may be asked of a model. A policy refuses what it cannot honour; `extra` goes into the request as it is."""

    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: int | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    max_tokens: Positive | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    reasoning_effort: str | None = None
    extra: dict[str, Json] | None = None


DialectName = Literal[
    "auto",
    "openai",
    "vllm",
    "vllm-completions",
    "vllm-generate",
    "sglang",
    "sglang-generate",
    "llamacpp",
    "llamacpp-completion",
    "responses",
    "anthropic",
]


class LocalConfig(_Section, frozen=True):
    """How llama.cpp runs in this process: `parallel` episodes share the threads, each with its own context."""

    threads: Positive | None = None
    context_tokens: Positive = 4096
    parallel: Positive = 8


class PolicyConfig(_Section, frozen=True):
    model: str | None = None
    base_url: str | list[str] | None = None
    dialect: DialectName = "auto"
    api_key_env: str | None = None
    sampling: Sampling = Sampling()
    call_retries: NotNegative = 5
    backoff_s: Annotated[float, msgspec.Meta(ge=0)] = 0.5
    requests_per_minute: Annotated[float, msgspec.Meta(gt=0)] | None = None
    tokens_per_minute: Annotated[float, msgspec.Meta(gt=0)] | None = None
    max_outage_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0
    probe: bool = True
    probe_timeout_s: Seconds = 20.0
    tool_calls: Literal["auto", "native", "hermes", "llama", "xml", "react", "fenced"] = "auto"
    local: LocalConfig = LocalConfig()


class EnvConfig(_Section, frozen=True):
    """An environment: its name (built in, `module:name`, or an entry point) and its settings."""

    name: str = "problem"
    settings: dict[str, Json] = {}


class AgentConfig(_Section, frozen=True):
    name: str = "chat"
    settings: dict[str, Json] = {}


class ScorerConfig(_Section, frozen=True):
    """`isolate`: a function of the user's own judges in confined processes. That changes no verdict, and is in no fingerprint."""

    name: str
    weight: float = 1.0
    settings: dict[str, Json] = {}
    isolate: bool = False


class McpConfig(_Section, frozen=True):
    """An MCP server: a command that is started, or the URL of a streamable HTTP endpoint, with headers."""

    command: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}


class ToolConfig(_Section, frozen=True):
    """Where tools come from: a function, `module:name`, or an MCP server, with a session an episode or a shared one.

    `name` stands for the server in the behaviour fingerprint, in place of its command or URL.
    """

    function: str | None = None
    mcp: McpConfig | None = None
    name: str | None = None
    session: Literal["episode", "shared"] = "episode"
    start_timeout_s: Seconds = 60.0


class ServiceConfig(_Section, frozen=True):
    """A server that the run needs: a command that is started for it, or the `url` of one that runs already."""

    command: str | list[str] = []
    cwd: str | None = None
    env: dict[str, str] = {}
    port: Literal["auto"] | Annotated[int, msgspec.Meta(ge=1, le=65535)] = "auto"
    url: str | None = None
    health: str | None = None  # None: it is up once its port takes connections
    needs: list[str] = []
    ready_timeout_s: Seconds = 300.0
    stop_timeout_s: Seconds = 10.0
    log: str | None = None


class LimitsConfig(_Section, frozen=True):
    max_turns: Positive = 50
    max_episode_tokens: Positive | None = None
    max_tool_calls: NotNegative | None = None
    max_parse_errors: NotNegative = 2  # in a row, each told to the model; the next one ends the episode
    max_tool_result_chars: Positive = 65_536
    replies_in_flight_mb: Positive = (
        512  # of all episodes of a process together; replies under 256 KiB are free
    )
    call_timeout_s: Seconds = 600.0
    tool_timeout_s: Seconds = 60.0
    score_timeout_s: Seconds = 60.0
    episode_timeout_s: Seconds | None = None
    close_timeout_s: Seconds = 10.0


class BudgetConfig(_Section, frozen=True):
    """What one call may spend. Prompts and replies count; `cost` is in the currency of `prices`."""

    tokens: Positive | None = None
    cost: Annotated[float, msgspec.Meta(gt=0)] | None = None
    seconds: Seconds | None = None


class Price(_Section, frozen=True):
    """For a million tokens. `cached`: prompt tokens that the server had cached; without it they cost as others do."""

    prompt: Annotated[float, msgspec.Meta(ge=0)]
    completion: Annotated[float, msgspec.Meta(ge=0)]
    cached: Annotated[float, msgspec.Meta(ge=0)] | None = None


class TrustConfig(_Section, frozen=True):
    """What rows may name beside data: everything (`rows`), or these, each spelled exactly as a refusal spells it."""

    rows: bool = False
    commands: list[str] = []  # whole command lines, with their variables and directory
    modules: list[str] = []  # `my_pkg.envs`, `my_pkg.*`, or one name: `my_pkg.envs:MyEnv`
    hosts: list[str] = []  # `mcp.example.com`, or only one port of it: `mcp.example.com:8443`
    variables: list[str] = []


class RunConfig(_Section, frozen=True):
    tasks: TasksConfig = TasksConfig()
    datasets: list[DatasetConfig] = []  # in place of one path: those of `tasks.split` are the tasks
    reuse_prepared: bool = False
    draw: DrawConfig = DrawConfig()
    blocklist: BlocklistConfig = BlocklistConfig()
    policy: PolicyConfig = PolicyConfig()
    env: EnvConfig = EnvConfig()
    agent: AgentConfig = AgentConfig()
    prompt: str | None = None
    scorers: list[ScorerConfig] | None = None
    judge: PolicyConfig = PolicyConfig()  # the model that scorers ask, where they name none of their own
    judge_concurrency: Positive | None = None  # calls at a time; None: what the judge bears, else 64
    min_group: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    tools: list[ToolConfig] = []
    allow_tools: list[str] = []
    deny_tools: list[str] = []
    samples: Positive = 1
    pass_: NotNegative = msgspec.field(default=0, name="pass")
    seeds: Literal["none", "id", "sample"] = "none"
    capture: Capture | None = None  # None: what the env or the policy says
    top_logprobs: Positive | None = None  # of the likeliest tokens at each place of a reply
    limits: LimitsConfig = LimitsConfig()
    concurrency: Positive | Literal["auto", "unlimited"] | None = None  # None: what the policy bears, else 64
    env_concurrency: dict[str, Positive] = {}  # of it, by environment
    agent_concurrency: dict[str, Positive] = {}
    workers: Positive = 1
    rank: NotNegative | None = None  # this call's number among `world_size` that share the tasks
    world_size: Positive | None = None  # None: as many as there are weights, else there are no ranks
    rank_weights: list[Weight] | None = None  # by rank; None: all alike
    services: dict[str, ServiceConfig] = {}  # by name
    serve: bool = True  # start them; they run already otherwise
    retries: NotNegative = 1
    max_failure_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    budget: BudgetConfig = BudgetConfig()
    prices: dict[str, Price] = {}  # by model; * and ? stand for anything
    track: list[str] = []  # wandb[:PROJECT], mlflow[:EXPERIMENT], tensorboard[:DIR]
    upload_rollouts: bool = True  # to those trackers
    out: str | None = None
    lock: bool = True
    shared: bool = False  # other users may read a new run, as far as the umask allows


class CallConfig(RunConfig, frozen=True):
    """What files and flags may set: the run, and what belongs to the call alone and is never kept with the run."""

    trust: TrustConfig = TrustConfig()

    @property
    def run(self) -> RunConfig:
        return RunConfig(**{name: getattr(self, name) for name in RunConfig.__struct_fields__})


def as_tree(config: msgspec.Struct) -> dict[str, Any]:
    """The configuration as plain values, `${VAR}` unexpanded: what run.json keeps."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    return tree
