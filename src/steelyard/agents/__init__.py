"""Parts for teams of people and of models: group memory, grouped skills, and debate that resists conformity."""

from __future__ import annotations

from steelyard.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "groupmembench.messages": ("Hit", "Message", "UnknownUserError"),
        "groupmembench.chat": ("GroupChat",),
        "groupmembench.protocol": ("GroupMemBench", "GroupMemReport", "Question", "read_questions"),
        "groupmembench.readers": ("DeterministicJudge", "DeterministicReader", "LMJudge", "LMReader"),
        "groupmembench.lexical": ("BM25Memory",),
        "groupmembench.dense": ("DenseMemory", "HybridMemory"),
        "groupmembench.flat": ("FlatFactMemory",),
        "groupmembench.structured": ("StructuredGroupMemory",),
        "groupmembench.store": ("MemoryStore",),
        "groupmembench.generator": ("GeneratedChat", "generate_group_chat"),
        "goskills.skill": ("Skill", "SkillFormatError"),
        "goskills.library": ("SkillLibrary",),
        "goskills.retriever": ("GoSkillsRetriever",),
        "goskills.contract": ("ExecutionContract",),
        "goskills.linker": ("LanguageModelLinker",),
        "goskills.langchain": ("SkillsRetriever",),
        "dear.core": ("GroupEvidence", "TotalConflictError", "group_evidence"),
        "dear.simulator": ("SimAgents",),
        "dear.committee": ("CommitteeAgents",),
        "dear.recorded": ("RecordedAgents",),
        "dear.env": ("DebateEnv",),
        "dear.audit": ("audit_label_leak",),
        "dear.policies": ("FullyConnected", "ReConcile", "Sparse"),
        "dear.controller": ("DEARController",),
        "dear.debate": ("Debate", "DebateError", "DebateResult"),
        "dear.prompts": ("DebatePrompts",),
        "dear.chat_agents": ("as_agent",),
        "dear.recorder": ("default_recording",),
        "dear.debate_recorder": ("DebateRecorder",),
        "dear.switching": ("measured_curve", "recorded_curve"),
        "dear.langgraph": ("async_debate_node", "debate_node"),
        "dear.autogen": ("DebateSelector",),
    },
    extra="agents",
)
