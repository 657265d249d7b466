"""For applications that run under Lattice: being asked to save themselves, through shared memory (--checkpoint=shmem).

    from lattice_checkpoint import Listener

    with Listener() as listener:
        for step in range(1000):
            ...
            with listener.asked() as request:
                if request:
                    model.save(request.directory)
                    request.step = step

Left without an exception, the block tells the agent that all is saved; with one, that it failed, and why. `request.defer(seconds)`
asks to be asked again later. Asking costs two loads from memory. Outside of Lattice nothing is ever asked. One process of each
node answers; one that is forked is not asked until it opens its own Listener. Run again, a program finds what it saved in the
directory that `restore_from()` gives.

The page is described in the Rust crate beside this file, `src/layout.rs`. Only the standard library is used.
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
# In words of 32 bits, and of 64.
_W_VERSION, _W_BYTES, _W_REQUEST, _W_OF_REQUEST = 2, 3, 16, 17
_W_ANSWERED, _W_ANSWER, _W_TAKEN, _W_PERCENT = 256, 257, 258, 259
_L_DEADLINE, _L_LEFT, _L_STEP, _L_FILES, _L_SAVED_BYTES, _L_DEFERRAL = 9, 130, 131, 132, 133, 134
_AT_TOKEN, _TOKEN_BYTES = 80, 64
_AT_REASON, _REASON_BYTES = 1080, 256
_W_TIME_SET, _D_TIME = 334, 168
_open = weakref.WeakSet()


def _forked():
    # A worker that is forked is not who listens, and would hold the lock when its parent is gone.
    for listener in list(_open):
        listener.close()


os.register_at_fork(after_in_child=_forked)


def _ms(seconds):
    """Milliseconds; None where it is no number that can be told."""
    try:
        ms = int(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(ms, 0), _UNREPORTED - 1)


def restore_from():
    """The directory to go on from, or None where the work begins from its beginning."""
    return os.environ.get("LATTICE_RESTORE_FROM") or None


class Listener:
    """Hears requests until it is closed: the agent asks only where somebody does."""

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
            # Whole words are loaded and stored, of the machine's own byte order.
            self._words = memoryview(self._map).cast("I")
            self._longs = memoryview(self._map).cast("Q")
            self._doubles = memoryview(self._map).cast("d")
            if self._map[:8] != _MAGIC or self._words[_W_BYTES] != _BYTES:
                raise ValueError(f"{page}: it is no page of checkpoints")
            if self._words[_W_VERSION] != _VERSION:
                raise ValueError(f"{page}: it is of version {self._words[_W_VERSION]}, this module knows {_VERSION}")
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
        """Says that nobody listens any more."""
        for view in (self._words, self._longs, self._doubles):
            if view is not None:
                view.release()
        if self._map is not None:
            self._map.close()
        if self._file is not None:
            # In so many words: children may have the descriptor yet, and one of them takes nothing from its parent.
            if self._opener == os.getpid():
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
        _open.discard(self)
        self._file = self._map = self._words = self._longs = self._doubles = None

    def asked(self):
        """The request that stands; one that is false where none does."""
        words = self._words
        if words is None:
            return Request(None, 0, None, None, 0)
        number = words[_W_REQUEST]
        if number == 0 or number == words[_W_ANSWERED]:
            return Request(None, 0, None, None, 0)
        of, deadline_ms = words[_W_OF_REQUEST], self._longs[_L_DEADLINE]
        token = self._map[_AT_TOKEN : _AT_TOKEN + _TOKEN_BYTES].split(b"\0", 1)[0].decode("ascii", "replace")
        whole = of == number and words[_W_OF_REQUEST] == number and words[_W_REQUEST] == number
        # While the agent writes the next one the numbers differ: it is found a moment later.
        if not whole or not token or not all(c == "-" or c in "0123456789abcdefABCDEF" for c in token):
            return Request(None, 0, None, None, 0)
        if words[_W_TAKEN] != number:
            # It was heard; how far it is, the program says.
            words[_W_PERCENT], self._longs[_L_LEFT] = 0xFFFFFFFF, _UNREPORTED
            words[_W_TAKEN] = number
        return Request(self, number, token, os.path.join(self._directory, token), deadline_ms)

    def wait(self, seconds):
        """The same, waiting for one so long at most: looks every millisecond."""
        until = time.monotonic() + seconds
        while True:
            request = self.asked()
            if request or time.monotonic() >= until:
                return request
            time.sleep(0.001)

    def _answer(self, number, answer):
        self._words[_W_ANSWER] = answer
        # Last: from here on the agent reads the rest.
        self._words[_W_ANSWERED] = number


class Request:
    """What is asked for; false where nothing is. Not answered, it is asked for again.

    token, directory: the directory's name, new with each request, and its path: it is there.
    deadline_ms: by when, in milliseconds since 1970; the agent waits half as long again.
    step, files, bytes: told with the answer where they are set; files and bytes are compared with what lies there.
    time: the time of what is simulated, in seconds, 0 to 1e28; told where it is set.
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
        """Says how far it is, and how long it will take yet. For people: the deadline stays."""
        if self._open:
            left = None if left_seconds is None else _ms(left_seconds)
            whole = _ms(percent)
            self._listener._words[_W_PERCENT] = 0xFFFFFFFF if whole is None or whole > 100_000 else whole // 1000
            self._listener._longs[_L_LEFT] = _UNREPORTED if left is None else left
            self._listener._words[_W_TAKEN] = self._number

    def done(self):
        """All of this node is written."""
        if self._open:
            numbers = ((_L_STEP, "step", self.step), (_L_FILES, "files", self.files), (_L_SAVED_BYTES, "bytes", self.bytes))
            for place, name, value in numbers:
                try:
                    number = _UNREPORTED if value is None else operator.index(value)
                    if not 0 <= number <= _UNREPORTED:
                        raise ValueError
                except (TypeError, ValueError):
                    # The program runs on: it learns of it from what the checkpoint failed of.
                    self.failed(f"{name} is {value!r}, and has to be a whole number that is not negative")
                    return
                self._listener._longs[place] = number
            try:
                seconds = 0.0 if self.time is None else float(self.time)
                if not 0 <= seconds <= 1e28:
                    raise ValueError
            except (TypeError, ValueError):
                self.failed(f"time is {self.time!r}, and has to be a number of seconds from 0 to 1e28")
                return
            self._listener._doubles[_D_TIME] = seconds
            self._listener._words[_W_TIME_SET] = 0 if self.time is None else 1
            self._answer(_DONE)

    def failed(self, why):
        """It cannot be saved: the checkpoint before this one stays, and the work runs on."""
        if self._open:
            text = str(why).encode("utf-8")[: _REASON_BYTES - 1].decode("utf-8", "ignore").encode("utf-8") + b"\0"
            self._listener._map[_AT_REASON : _AT_REASON + len(text)] = text
            self._answer(_FAILED)

    def defer(self, seconds):
        """Asks to be asked again after so long: five minutes at most, all deferrals of one checkpoint together."""
        if self._open:
            # What is no number is the least, as in the agent.
            self._listener._longs[_L_DEFERRAL] = _ms(seconds) or 0
            self._answer(_DEFERRED)

    def _answer(self, answer):
        self._listener._answer(self._number, answer)
        self._open = False
