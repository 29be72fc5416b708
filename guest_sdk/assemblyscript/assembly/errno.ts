// What a call answers when it fails. AssemblyScript has no exceptions to catch, so nothing here throws
// behind a program's back: a call without a value returns an `Errno`, a call with one a `Result`, and
// `check` and `unwrap` end the program with words when it can't go on anyway.

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

/** The name of an error and what it means. */
export function describe(errno: Errno): string {
  switch (errno) {
    case Errno.OK: return "OK";
    case Errno.ENOENT: return "ENOENT, there is no such thing";
    case Errno.EIO: return "EIO, the work failed";
    case Errno.EBADF: return "EBADF, no such handle or ticket";
    case Errno.EAGAIN: return "EAGAIN, not now";
    case Errno.ENOMEM: return "ENOMEM, out of memory or pages";
    case Errno.EACCES: return "EACCES, not allowed";
    case Errno.EFAULT: return "EFAULT, a pointer outside memory";
    case Errno.EBUSY: return "EBUSY, the file is in use";
    case Errno.EEXIST: return "EEXIST, the name is taken";
    case Errno.EINVAL: return "EINVAL, an argument is wrong";
    case Errno.EFBIG: return "EFBIG, too large";
    case Errno.ENOSPC: return "ENOSPC, no space is left";
    case Errno.EPIPE: return "EPIPE, the other end has closed";
    case Errno.ENAMETOOLONG: return "ENAMETOOLONG, the name is too long";
    case Errno.ENOSYS: return "ENOSYS, this server does not do that";
    case Errno.ETIMEDOUT: return "ETIMEDOUT, the time is over";
    case Errno.EDQUOT: return "EDQUOT, the tenant's quota is used up";
    case Errno.ECANCELED: return "ECANCELED, the work was dropped";
    default: return "errno " + (errno as i32).toString();
  }
}

/** The error in a call's raw result; `OK` for zero and above. */
export function errnoOf(result: i32): Errno {
  return result < 0 ? -result : Errno.OK;
}

/** Ends the program when `errno` is an error; `what` says what was tried. */
export function check(errno: Errno, what: string = "a call"): void {
  if (errno != Errno.OK) throw new Error(what + ": " + describe(errno));
}

/** A value, or the error that stands in its place. */
export class Result<T> {
  private content: T;

  constructor(
    content: T,
    /** `OK` when there is a value. */
    readonly errno: Errno,
    /** What was tried, for messages. */
    readonly what: string,
  ) {
    this.content = content;
  }

  /** Whether there is a value. */
  get ok(): bool {
    return this.errno == Errno.OK;
  }

  /** The value; ends the program with the reason when there is none. */
  unwrap(): T {
    if (this.errno != Errno.OK) throw new Error(this.reason);
    return this.content;
  }

  /** The value, or `other` when there is none. */
  or(other: T): T {
    return this.errno == Errno.OK ? this.content : other;
  }

  /** What was tried and why it failed. */
  get reason(): string {
    return this.what + ": " + describe(this.errno);
  }
}

/** A result with a value. */
export function success<T>(value: T): Result<T> {
  return new Result<T>(value, Errno.OK, "");
}

/** A result without one. */
export function failure<T>(errno: Errno, what: string): Result<T> {
  // Nothing reads the content of a failed result, so a reference in it may be null.
  if (isReference<T>()) return new Result<T>(changetype<T>(0), errno, what);
  return new Result<T>(<T>0, errno, what);
}
