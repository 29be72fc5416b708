// What a call answers when it fails. AssemblyScript has no exceptions to catch. So a call has two forms:
// `open` ends the run, with words, where it fails; `tryOpen` returns the failure instead.

/** The errors of the ABI; `OK` is none. */
export enum Errno {
  OK = 0,
  ENOENT = 2,
  EIO = 5,
  EBADF = 9,
  EAGAIN = 11,
  ENOMEM = 12,
  EACCES = 13,
  EFAULT = 14,
  EBUSY = 16,
  EEXIST = 17,
  EINVAL = 22,
  EFBIG = 27,
  ENOSPC = 28,
  EPIPE = 32,
  ENAMETOOLONG = 36,
  ENOSYS = 38,
  ETIMEDOUT = 110,
  EDQUOT = 122,
  ECANCELED = 125,
}

/** The name of an error, what it means, and what to do. */
export function describe(errno: Errno): string {
  switch (errno) {
    case Errno.OK: return "OK";
    case Errno.ENOENT: return "ENOENT, there is no such name: check its spelling";
    case Errno.EIO: return "EIO, the server failed at it: try again, or see the server's log";
    case Errno.EBADF: return "EBADF, no such handle or ticket: it was closed or taken before";
    case Errno.EAGAIN: return "EAGAIN, not now: try again later";
    case Errno.ENOMEM: return "ENOMEM, no pages or memory are left: close files or fork less";
    case Errno.EACCES: return "EACCES, not allowed: ask for the right, or ask the operator";
    case Errno.EFAULT: return "EFAULT, a pointer is outside memory: check pointer and length";
    case Errno.EBUSY: return "EBUSY, a generation uses the file: let it end, or cancel it";
    case Errno.EEXIST: return "EEXIST, the name is taken: replace it, or choose another";
    case Errno.EINVAL: return "EINVAL, an argument is wrong: check what the call takes";
    case Errno.EFBIG: return "EFBIG, too large: shorten it";
    case Errno.ENOSPC: return "ENOSPC, no space is left: remove files";
    case Errno.EPIPE: return "EPIPE, the other end has closed: finish";
    case Errno.ENAMETOOLONG: return "ENAMETOOLONG, the name is too long: shorten it";
    case Errno.ENOSYS: return "ENOSYS, this server does not support it: do without it";
    case Errno.ETIMEDOUT: return "ETIMEDOUT, the time is over: allow more";
    case Errno.EDQUOT: return "EDQUOT, the quota is used up: close files, fork less, or ask for more";
    case Errno.ECANCELED: return "ECANCELED, the work was cancelled";
    default: return "errno " + (errno as i32).toString();
  }
}

/** How a `try...` call ended that gives no value. */
export class Outcome {
  constructor(
    /** `OK` when it succeeded. */
    readonly errno: Errno = Errno.OK,
    /** The call with its operand, such as `KvFile.open("prompts/review")`. */
    readonly call: string = "",
    /** Words for this failure that are better than those of the errno; "": there are none. */
    readonly detail: string = "",
  ) {}

  /** Whether it succeeded. */
  get ok(): bool {
    return this.errno == Errno.OK;
  }

  /** The call, why it failed, and what to do. */
  get reason(): string {
    return this.call + ": " + (this.detail.length ? this.detail : describe(this.errno));
  }

  /** Ends the run with the reason, if it failed. */
  demand(): void {
    if (this.errno != Errno.OK) throw new Error(this.reason);
  }
}

/** How a `try...` call ended: with a value, or with the error that stands in its place. */
export class Result<T> extends Outcome {
  constructor(
    private readonly content: T,
    errno: Errno,
    call: string = "",
    detail: string = "",
  ) {
    super(errno, call, detail);
  }

  /** The value; ends the run with the reason when there is none. */
  get value(): T {
    this.demand();
    return this.content;
  }

  /** The value, or `other` when there is none. */
  or(other: T): T {
    return this.ok ? this.content : other;
  }
}
