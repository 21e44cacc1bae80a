"""What generated chats are about: domains with their things and the words that roles have for them.

All of it was written for this library. Nothing here is read by a memory; the deterministic reader uses the lists of
values as its knowledge of the language.
"""

from __future__ import annotations

from typing import NamedTuple


class Domain(NamedTuple):
    """A trade: its roles, and its things: a common name and three others; which role uses which is drawn per chat."""

    roles: tuple[str, ...]
    entities: tuple[tuple[str, str, str, str], ...]


DOMAINS: dict[str, Domain] = {
    "finance": Domain(
        ("DataEngineer", "Controller", "Auditor", "TreasuryLead", "ProductManager", "TaxAdviser", "OperationsLead"),
        (
            ("invoice matching", "bill matching", "payables check", "three-way tie-out"),
            ("month-end close", "month-end wrap-up", "books lockdown", "ledger cutoff"),
            ("expense claims", "travel claims", "staff spend", "receipt payback"),
            ("cash forecast", "liquidity forecast", "treasury view", "funding runway"),
            ("vendor onboarding", "supplier onboarding", "payee setup", "counterparty admission"),
            ("tax filing", "statutory filing", "levy submission", "revenue paperwork"),
            ("audit trail", "evidence trail", "control history", "trace records"),
            ("budget planning", "spend planning", "cost framing", "allocation round"),
        ),
    ),
    "technology": Domain(
        ("Backend", "Frontend", "SiteReliability", "ProductManager", "SecurityLead", "DataScientist", "Support"),
        (
            ("login service", "identity service", "sign-in flow", "auth layer"),
            ("search index", "lookup index", "query store", "finder backend"),
            ("billing module", "charge module", "payment core", "metering stack"),
            ("mobile app", "handset app", "pocket build", "phone edition"),
            ("event pipeline", "stream pipeline", "ingest chain", "telemetry bus"),
            ("admin console", "operator console", "back office", "staff dashboard"),
            ("image cache", "media cache", "asset mirror", "picture depot"),
            ("alert rules", "pager rules", "alarm setup", "incident triggers"),
        ),
    ),
    "healthcare": Domain(
        ("Clinician", "Nurse", "Pharmacist", "ITLead", "Compliance", "Scheduler", "DataManager"),
        (
            ("bed planning", "ward planning", "occupancy board", "capacity sheet"),
            ("drug ordering", "medication ordering", "pharmacy basket", "dose procurement"),
            ("lab results", "specimen results", "test readouts", "pathology feed"),
            ("patient intake", "patient admission", "arrival forms", "front registration"),
            ("referral letters", "consult letters", "specialist handover", "outbound notes"),
            ("imaging archive", "scan archive", "radiology store", "picture system"),
            ("consent forms", "permission forms", "patient approvals", "signature packet"),
            ("shift roster", "duty roster", "staffing grid", "rota tool"),
        ),
    ),
    "manufacturing": Domain(
        ("PlantManager", "QualityLead", "Buyer", "Maintenance", "ProcessEngineer", "Logistics", "SafetyOfficer"),
        (
            ("press line", "stamping line", "forming station", "die shop"),
            ("paint booth", "coating booth", "finish bay", "lacquer unit"),
            ("parts inventory", "stock inventory", "bin counts", "warehouse tally"),
            ("inbound freight", "supplier freight", "dock arrivals", "goods receipt"),
            ("torque checks", "bolt checks", "fastener tests", "tightening proof"),
            ("spare tooling", "backup tooling", "reserve jigs", "standby dies"),
            ("packing area", "boxing area", "dispatch tables", "carton lane"),
            ("energy meters", "power meters", "usage probes", "consumption gauges"),
        ),
    ),
}

CHANNELS = ("atlas", "borealis", "cobalt", "delphi", "ember", "fjord")
PHASES = (
    "Vendor Evaluation", "Data Migration", "Pilot Run", "User Training", "Cutover Planning", "Launch Support",
    "Risk: Extended Downtime", "Risk: Record Leakage",
)  # fmt: skip

TOPICS: dict[str, tuple[str, ...]] = {
    "rollout approach": (
        "one big weekend", "two teams first", "region by region", "a month side by side", "invitation only",
        "dark behind a flag", "smallest sites first", "night shifts only",
    ),
    "approval process": (
        "two signatures", "a single named approver", "a weekly panel", "silent consent after three days",
        "peer tick plus manager", "an external stamp", "a shared mailbox vote", "sampling by the board",
    ),
    "fallback plan": (
        "paper forms", "yesterday's snapshot", "the old spreadsheet", "a warm copy in the second site",
        "phone tree and runner", "read-only mode", "a frozen queue", "manual entry at night",
    ),
    "training format": (
        "short videos", "desk-side coaching", "a full day off site", "a sandbox with tasks", "lunch sessions",
        "printed cards", "a buddy for each team", "recorded walkthroughs",
    ),
    "reporting rhythm": (
        "every Tuesday", "twice a day", "once per fortnight", "each morning at eight", "end of every sprint",
        "only by exception", "the first of the month", "after each batch",
    ),
    "access scheme": (
        "role tokens", "per-site keys", "break-glass accounts", "manager delegation", "shared kiosks",
        "badge plus pin", "time-boxed passes", "named seats",
    ),
    "retention scope": (
        "ninety days", "seven years", "active cases only", "everything but attachments", "headers without bodies",
        "two closed quarters", "flagged items only", "a rolling week",
    ),
    "test coverage": (
        "ten percent of rows", "all edge cases", "the busiest site", "one full cycle", "scripts plus eyeballs",
        "only failed items", "random pulls", "the top fifty accounts",
    ),
}  # fmt: skip

STATUSES = (
    "on track", "parked", "half done", "in review", "delayed", "signed off", "waiting for funds", "under test",
    "abandoned", "ready to ship", "back in drafting", "escalated",
)  # fmt: skip
BLOCKERS = (
    "the firewall ticket", "the missing sample files", "legal's answer", "a test account", "the licence key",
    "the vendor's price list", "two extra laptops", "the clean address list", "a decision on overtime",
    "the translation", "the courier contract", "the sensor drivers", "the export from the old tool",
    "the risk memo", "a quiet room", "the rate table",
)  # fmt: skip
ACTIONS = (
    "dry run", "supplier call", "field mapping", "load rehearsal", "permission sweep", "handbook draft",
    "cost recount", "walk-through", "stock take", "log review",
)  # fmt: skip
ARTIFACTS = (
    "risk register", "seating plan", "mapping table", "meeting notes", "price comparison", "checklist",
    "wiring diagram", "contact list", "test script", "scoring grid",
)  # fmt: skip
DETAILS: dict[str, tuple[str, str]] = {
    "tool version": (r"\b\d+\.\d+\.\d+\b", "release {a}.{b}.{c}"),
    "error quota": (r"\b\d+\.\d+ ?%", "a quota of {a}.{b} %"),
    "cost code": (r"\bCC-\d{4}\b", "code CC-{a}{b}{c}0"),
    "head count": (r"\b\d+ heads\b", "{a}{b} heads"),
    "response time": (r"\b\d+ ms\b", "{a}{b}0 ms"),
    "contract number": (r"\bNo\. \d+\b", "No. {a}{b}{c}"),
    "daily volume": (r"\b\d+ items\b", "{a}{b}00 items"),
    "service level": (r"\b\d+ nines\b", "{a} nines"),
}
"""What abstention questions ask for: a pattern of answers, and how a message that has one says it."""

BLUNT_WORDS = (
    "instead", "change", "changed", "changing", "now", "update", "updated", "switch", "switched", "switching",
    "longer", "revise", "revised", "replace", "replaced", "replaces", "supersede", "supersedes", "rather", "correction",
    "actually", "scrap", "scrapped", "overrule", "overruled", "drop", "dropped", "reverse", "reversed", "moved",
)  # fmt: skip
"""Cue words that no change of the shipped generator contains."""
