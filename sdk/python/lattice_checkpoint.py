"""For applications under Lattice: receive requests to save themselves, through shared memory (--checkpoint=shmem).

    from lattice_checkpoint import Listener

    with Listener() as listener:
        for step in range(1000):
            ...
            with listener.asked() as request:
                if request:
                    model.save(request.directory)
                    request.step = step

If the inner block ends without an exception, it reports that everything is saved; an exception reports a failure, with
its text as the reason. `request.defer(seconds)` requests to be asked again later. A check costs two loads from memory.
Outside of Lattice there is never a request. One process of each node answers; a forked process gets no request before
it opens its own Listener. When the program runs again, it finds its saved files in the directory `restore_from()`.

`src/layout.rs` of the Rust crate describes the page. This module needs only the standard library.
"""

import fcntl
import mmap
import operator
import os
import time
import weakref

__all__ = ["Listener", "Request", "restore_from"]

_MAGIC = b"LATTCKPT"
_VERSION = 1
_BYTES = 4096
_DONE, _FAILED, _DEFERRED = 1, 2, 3
_UNREPORTED = 0xFFFFFFFFFFFFFFFF
# Offsets of fields: _W in units of 32 bits, _L and _D in units of 64 bits, _AT in bytes.
_W_VERSION, _W_BYTES, _W_REQUEST, _W_OF_REQUEST = 2, 3, 16, 17
_W_ANSWERED, _W_ANSWER, _W_TAKEN, _W_PERCENT = 256, 257, 258, 259
_L_DEADLINE, _L_LEFT, _L_STEP, _L_FILES, _L_SAVED_BYTES, _L_DEFERRAL = 9, 130, 131, 132, 133, 134
_AT_TOKEN, _TOKEN_BYTES = 80, 64
_AT_REASON, _REASON_BYTES = 1080, 256
_W_TIME_SET, _D_TIME = 334, 168
_open = weakref.WeakSet()


def _close_after_fork():
    # A forked worker does not listen. With its parent's lock it would seem to, even after the parent has ended.
    for listener in list(_open):
        listener.close()


os.register_at_fork(after_in_child=_close_after_fork)


def _ms(seconds):
    """Milliseconds; None if the value is not a number, or not finite."""
    try:
        ms = int(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(ms, 0), _UNREPORTED - 1)


def restore_from():
    """The directory with the saved files, or None if the work begins from its beginning."""
    return os.environ.get("LATTICE_RESTORE_FROM") or None


class Listener:
    """Receives requests until it is closed. The agent makes requests only while a process of the node listens."""

    def __init__(self, page=None, directory=None):
        page = page or os.environ.get("LATTICE_CHECKPOINT_SHM")
        self._directory = directory or os.environ.get("LATTICE_CHECKPOINT_DIR")
        self._file = self._map = self._words = self._longs = self._doubles = self._opener = None
        if not page or not self._directory:
            return
        file = open(os.open(page, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), "r+b", buffering=0)
        try:
            size = os.fstat(file.fileno()).st_size
            if size < _BYTES:
                raise ValueError(f"{page}: it has {size} bytes of {_BYTES}: somebody made it shorter")
            self._map = mmap.mmap(file.fileno(), _BYTES)
            self._file = file
            # Each number is read and written in one access, in the machine's byte order.
            self._words = memoryview(self._map).cast("I")
            self._longs = memoryview(self._map).cast("Q")
            self._doubles = memoryview(self._map).cast("d")
            if self._map[:8] != _MAGIC or self._words[_W_BYTES] != _BYTES:
                raise ValueError(f"{page}: it is not a checkpoint page")
            if self._words[_W_VERSION] != _VERSION:
                found = self._words[_W_VERSION]
                raise ValueError(f"{page}: it has version {found}, and this module supports {_VERSION}")
            fcntl.flock(file, fcntl.LOCK_SH)
            self._opener = os.getpid()
            _open.add(self)
        except BaseException:
            self._file = file
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Stops listening."""
        for view in (self._words, self._longs, self._doubles):
            if view is not None:
                view.release()
        if self._map is not None:
            self._map.close()
        if self._file is not None:
            # Explicitly, because forked children may still have the descriptor. A child must not unlock for its parent.
            if self._opener == os.getpid():
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
        _open.discard(self)
        self._file = self._map = self._words = self._longs = self._doubles = None

    def asked(self):
        """The pending request; if there is none, a request that is false."""
        words = self._words
        if words is None:
            return Request(None, 0, None, None, 0)
        number = words[_W_REQUEST]
        if number == 0 or number == words[_W_ANSWERED]:
            return Request(None, 0, None, None, 0)
        of, deadline_ms = words[_W_OF_REQUEST], self._longs[_L_DEADLINE]
        token = self._map[_AT_TOKEN : _AT_TOKEN + _TOKEN_BYTES].split(b"\0", 1)[0].decode("ascii", "replace")
        whole = of == number and words[_W_OF_REQUEST] == number and words[_W_REQUEST] == number
        # The numbers differ while the agent writes the next request: it is found a moment later.
        if not whole or not token or not all(c == "-" or c in "0123456789abcdefABCDEF" for c in token):
            return Request(None, 0, None, None, 0)
        if words[_W_TAKEN] != number:
            # Acknowledges the request, without progress yet.
            words[_W_PERCENT], self._longs[_L_LEFT] = 0xFFFFFFFF, _UNREPORTED
            words[_W_TAKEN] = number
        return Request(self, number, token, os.path.join(self._directory, token), deadline_ms)

    def wait(self, seconds):
        """The same, but waits for a request for at most this time: checks every millisecond."""
        until = time.monotonic() + seconds
        while True:
            request = self.asked()
            if request or time.monotonic() >= until:
                return request
            time.sleep(0.001)

    def _answer(self, number, answer):
        self._words[_W_ANSWER] = answer
        # Written last: from here on the agent reads the rest.
        self._words[_W_ANSWERED] = number


class Request:
    """A request to save; false if there is none. If it is not answered, it is returned again.

    token, directory: the name of the directory, new for each request, and its path; it exists.
    deadline_ms: the deadline, in milliseconds since 1970; the agent waits half as long again.
    step, files, bytes: set them to report them; files and bytes are compared with the files in the directory.
    time: the simulated time in seconds, 0 to 1e28; set it to report it.
    """

    def __init__(self, listener, number, token, directory, deadline_ms):
        self._listener, self._number, self._open = listener, number, listener is not None
        self.token, self.directory, self.deadline_ms = token, directory, deadline_ms
        self.step = self.files = self.bytes = self.time = None

    def __bool__(self):
        return self._listener is not None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if self._open and kind is None:
            self.done()
        elif self._open:
            self.failed(f"{kind.__name__}: {error}")
        return False

    def progress(self, percent, left_seconds=None):
        """Reports the progress, and the remaining time. Only for people: the deadline does not change."""
        if self._open:
            left = None if left_seconds is None else _ms(left_seconds)
            whole = _ms(percent)
            self._listener._words[_W_PERCENT] = 0xFFFFFFFF if whole is None or whole > 100_000 else whole // 1000
            self._listener._longs[_L_LEFT] = _UNREPORTED if left is None else left
            self._listener._words[_W_TAKEN] = self._number

    def done(self):
        """Reports that everything of this node is written."""
        if self._open:
            numbers = ((_L_STEP, "step", self.step), (_L_FILES, "files", self.files), (_L_SAVED_BYTES, "bytes", self.bytes))
            for place, name, value in numbers:
                try:
                    number = _UNREPORTED if value is None else operator.index(value)
                    if not 0 <= number <= _UNREPORTED:
                        raise ValueError
                except (TypeError, ValueError):
                    # No exception, because the program must go on: the reason of the failed checkpoint names the value.
                    self.failed(f"{name} is {value!r}; it must be an integer of at least 0")
                    return
                self._listener._longs[place] = number
            try:
                seconds = 0.0 if self.time is None else float(self.time)
                if not 0 <= seconds <= 1e28:
                    raise ValueError
            except (TypeError, ValueError):
                self.failed(f"time is {self.time!r}; it must be a number of seconds from 0 to 1e28")
                return
            self._listener._doubles[_D_TIME] = seconds
            self._listener._words[_W_TIME_SET] = 0 if self.time is None else 1
            self._answer(_DONE)

    def failed(self, why):
        """Reports that the work cannot be saved: the previous checkpoint stays, and the work continues."""
        if self._open:
            text = str(why).encode("utf-8")[: _REASON_BYTES - 1].decode("utf-8", "ignore").encode("utf-8") + b"\0"
            self._listener._map[_AT_REASON : _AT_REASON + len(text)] = text
            self._answer(_FAILED)

    def defer(self, seconds):
        """Requests to be asked again after this time: at most five minutes for all deferrals of one checkpoint."""
        if self._open:
            # A value that is not a number counts as 0, which the agent raises to its minimum.
            self._listener._longs[_L_DEFERRAL] = _ms(seconds) or 0
            self._answer(_DEFERRED)

    def _answer(self, answer):
        self._listener._answer(self._number, answer)
        self._open = False
