"""What each diagram shows, apart from figures of measurements."""

from tools.diagrams.picture import Picture


def processes() -> Picture:
    """Draw the processes, their links, and where tenants' code runs."""
    picture = Picture(860, 430, "Processes of a server and what each is trusted with")
    picture.box(20, 150, 110, 76, "client", "HTTP, SSE,", "WebSocket")
    picture.box(190, 20, 650, 44, "supervisor", "starts, watches, restarts and drains the others")
    picture.box(190, 120, 170, 120, "gateway", "network, keys, tenants", "programs, runs, metrics",
                "tools and HTTP for LIPs", kind="own")  # fmt: skip
    picture.box(450, 90, 160, 190, kind="guest")
    picture.text(530, 110, "worker (1 to n)", "strong", "middle")
    for number in range(3):
        picture.box(470, 122 + 34 * number, 120, 26, "LIP", kind="good")
    for number, words in enumerate(
        ("each LIP is a fiber", "no network, no files", "no model, no secrets")
    ):
        picture.text(530, 240 + 16 * number, words, "small", "middle")
    picture.box(690, 110, 150, 150, "kernel", "process table", "KVFS: files and pages",
                "level 1: who runs", "level 2: what runs now", kind="own")  # fmt: skip
    picture.box(690, 330, 150, 56, "executor", "CPU kernels, or GPU", kind="own")
    picture.box(190, 330, 170, 56, "database", "SQLite or PostgreSQL")
    picture.box(450, 330, 160, 56, "disk", "journal, durable KV")
    picture.arrow((130, 188), (190, 188), words="HTTP")
    picture.arrow((360, 165), (450, 165), words="start, input")
    picture.arrow((450, 200), (360, 200), words="output, tools", above=False)
    picture.arrow((610, 165), (690, 165), words="calls")
    picture.arrow((690, 200), (610, 200), words="replies", above=False)
    picture.arrow((325, 240), (325, 300), (715, 300), (715, 260))
    picture.text(530, 294, "register, end, limits", "small soft", "middle")
    picture.arrow((225, 240), (225, 330))
    picture.text(180, 290, "synced before the answer", "small soft", "end")
    picture.arrow((790, 260), (790, 330))
    picture.text(797, 300, "batch", "small soft")
    picture.arrow((740, 260), (740, 316), (530, 316), (530, 330))
    for x, y in ((275, 120), (530, 90), (765, 110)):
        picture.arrow((x, 64), (x, y), kind="dash")
    for x, kind, words in (
        (20, "own", "ours, without tenants' code"),
        (220, "guest", "runs tenants' code, locked down; the kernel checks its calls"),
        (640, "good", "a tenant's program"),
    ):
        picture.box(x, 406, 12, 12, kind=kind)
        picture.text(x + 18, 417, words, "small soft")
    return picture


def pages() -> Picture:
    """Draw files and pages under fork, append, extract and truncate."""
    picture = Picture(860, 520, "KV files and pages under fork, append, extract and truncate")
    a, b = ("A", 16), ("B", 16)
    rows = (
        ("start", "prefix has 40 entries", [a, b, ("C", 8)], ()),
        ("kv_fork", "the fork holds the same pages", [a, b, ("C", 8)], "ABC"),
        ("pred on the fork", "the first write copies the partial page", [a, b, ("D", 12)], "AB"),
        ("kv_append", "entries 0 to 32 of prefix, behind 16 of its own", [("E", 16), a, b], "AB"),
        ("kv_extract", "entries 16 to 40: an aligned page is shared, the rest copied",
         [b, ("F", 8)], "B"),
        ("kv_truncate", "the fork back to 24: pages go, nothing is copied", [a, ("B", 8)], "AB"),
    )  # fmt: skip
    picture.text(20, 30, "call", "small soft")
    picture.text(400, 30, "the file's pages, 16 entries each", "small soft")
    for number, (call, what, table, shared) in enumerate(rows):
        y = 44 + 74 * number
        picture.text(20, y + 24, call, "mono strong")
        picture.text(20, y + 42, what, "small soft")
        for place, (page, entries) in enumerate(table):
            x = 400 + 148 * place
            picture.box(x, y, 140, 50, kind="none")
            kind = "own" if page in shared else "good"
            picture.box(x, y, 140 * entries / 16, 50, kind=kind)
            picture.text(x + 8, y + 20, f"page {page}", "strong")
            picture.text(x + 8, y + 38, f"{entries} entries", "small")
    picture.box(20, 494, 12, 12, kind="good")
    picture.text(38, 505, "held by this file alone", "small soft")
    picture.box(210, 494, 12, 12, kind="own")
    picture.text(228, 505, "shared with prefix: held once", "small soft")
    return picture


def tiers() -> Picture:
    """Draw the life of a page through the tiers."""
    picture = Picture(860, 330, "The tiers of a page")
    picture.box(30, 110, 170, 90, "device", "the page has a frame", "steps read and write it",
                kind="own")  # fmt: skip
    picture.box(340, 40, 170, 80, "host memory", "a copy in a slot", kind="good")
    picture.box(660, 40, 170, 80, "disk tier", "a copy in a file", kind="good")
    picture.box(340, 210, 170, 80, "tokens only", "no copy anywhere", kind="guest")
    picture.arrow((200, 125), (340, 70), words="")
    picture.text(218, 80, "evict: copy", "small soft")
    picture.arrow((340, 105), (200, 150), words="")
    picture.text(276, 144, "use: load", "small soft")
    picture.arrow((510, 66), (660, 66), words="write behind")
    picture.arrow((745, 120), (745, 310), (90, 310), (90, 200), words="")
    picture.text(560, 303, "use: read into a frame", "small soft")
    picture.arrow((200, 180), (340, 235), words="")
    picture.text(214, 232, "evict: cheaper", "small soft")
    picture.text(214, 246, "to compute", "small soft")
    picture.arrow((340, 265), (150, 265), (150, 200), words="")
    picture.text(170, 282, "use: recompute", "small soft")
    picture.arrow((425, 120), (425, 210), words="drop the copy, keep the tokens")
    picture.text(540, 245, "An unrecomputable page never", "small soft")
    picture.text(540, 260, "becomes tokens only.", "small soft")
    return picture


def scheduling() -> Picture:
    """Draw the two levels of scheduling, and one step."""
    picture = Picture(860, 380, "Two-level scheduling of one step")
    picture.text(20, 28, "Level 1: who may run", "strong")
    picture.text(20, 46, "one queue a run, below one a tenant", "small soft")
    picture.text(350, 28, "Level 2: what runs now", "strong")
    picture.text(350, 46, "token budget, free pages", "small soft")
    picture.text(650, 28, "One step", "strong")
    picture.text(650, 46, "one forward pass", "small soft")
    queues = (
        ("tenant x, weight 1", (("run 1", 1, "guest"),)),
        ("tenant y, weight 2", (("run 2", 3, "good"), ("run 3", 1, "own"))),
    )
    y = 66
    for tenant, runs in queues:
        height = 34 + 44 * len(runs)
        picture.box(20, y, 270, height, kind="none")
        picture.text(30, y + 20, f"{tenant}: device seconds", "small")
        for number, (run, waiting, kind) in enumerate(runs):
            at = y + 30 + 44 * number
            picture.text(32, at + 22, run, "small")
            for request in range(waiting):
                picture.box(80 + 62 * request, at, 56, 32, kind=kind)
                words = "prompt" if kind == "guest" else "decode"
                picture.text(108 + 62 * request, at + 20, words, "small", "middle")
        y += height + 14
    picture.text(20, y + 6, "The least virtual time is served first.", "small soft")
    picture.box(350, 90, 220, 150, "batcher", "requests in fair order", "prompts cut into chunks",
                "one step bounded for each tenant", "waits for runs about to answer")  # fmt: skip
    picture.arrow((290, 165), (350, 165))
    picture.box(
        350, 280, 220, 70, "admission", "all pages of a request,", "or none: it waits in order"
    )
    picture.arrow((460, 280), (460, 240))
    picture.arrow((570, 165), (650, 165))
    rows = (("chunk of run 1: 48 tokens", "guest"), ("run 2, branch 1", "good"),
            ("run 2, branch 2", "good"), ("run 2, branch 3", "good"), ("run 3", "own"))  # fmt: skip
    for number, (words, kind) in enumerate(rows):
        picture.box(650, 66 + 42 * number, 190, 34, words, kind=kind, small=True)
    picture.text(650, 292, "Each row gives its tenant a charge:", "small soft")
    picture.text(650, 308, "the step's time, divided by weight.", "small soft")
    picture.arrow((745, 320), (745, 366), (10, 366), (10, 130), (20, 130), kind="dash")
    picture.text(220, 360, "results; the next request of each run", "small soft", "middle")
    return picture


def crash() -> Picture:
    """Draw the death of a kernel and its recovery from the journal."""
    picture = Picture(860, 560, "A kernel dies and the next one continues from the journal")
    columns = {"supervisor": 90, "worker": 290, "kernel": 500, "journal": 740}
    for name, x in columns.items():
        picture.box(x - 65, 20, 130, 34, name, kind="own" if name != "worker" else "guest")
        picture.line((x, 54), (x, 545), kind="dash")
    worker, kernel, journal = columns["worker"], columns["kernel"], columns["journal"]

    def message(y: float, begin: float, end: float, words: str) -> None:
        picture.arrow((begin, y), (end, y), words=words)

    message(90, worker, kernel, "Calls: pred, kv_fork")
    message(124, kernel, journal, "one record a turn, first")
    message(158, kernel, worker, "Replies, then receipts")
    message(196, worker, kernel, "Calls: pred")
    picture.box(kernel - 60, 212, 120, 34, kind="none")
    picture.text(kernel, 234, "killed", "failed", "middle")
    picture.text(worker - 12, 230, "LIPs wait; limits hold", "small soft", "end")
    message(274, columns["supervisor"], kernel, "starts another kernel")
    message(312, journal, kernel, "snapshot, then records")
    picture.box(kernel - 110, 330, 220, 48, kind="own")
    picture.text(kernel, 350, "replay: handles, lengths,", "small", "middle")
    picture.text(kernel, 366, "names, quotas, waiting calls", "small", "middle")
    message(410, worker, kernel, "Hello: frames received so far")
    message(444, kernel, worker, "Welcome: frames received so far")
    message(478, worker, kernel, "frames without a receipt, again")
    picture.text(kernel + 12, 500, "K and V are computed again", "small soft")
    picture.text(kernel + 12, 516, "when a file is next used", "small soft")
    message(526, kernel, worker, "Replies: each exactly once")
    return picture
