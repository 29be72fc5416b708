"""The time of a step, predicted from its rows and learned from steps that end.

    seconds = base(new tokens) + sum over rows of (attention + adapter + sampling + bitmask)

`base` is piecewise linear: a constant, since the weights are read once for all rows, and a slope
for each range of new tokens. Attention is linear in the entries that decode rows read, and in
tokens times entries for prompts. Tokens with an adapter have a coefficient. Sampling has one for
each kind of row that executors treat differently. A bitmask costs what its grammar took lately.
Each step that ends corrects the coefficients by a Kalman filter. Its covariance says how far each
may be off, and which of them together. No numbers of a machine are assumed.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from symphony_kernel.protocol.limits import PREFILL_QUANTUM_TOKENS, PREFILL_TOKENS_MIN
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions
from symphony_kernel.request import Request

_SEGMENTS: Final = (0, 8, 32, 128, 512)  # new tokens at which the slope changes
# Until something has been measured:
_TOKEN_SECONDS: Final = 0.001  # of a prompt's token
_DECODE_TOKENS: Final = 2.0  # that a decode is charged for
_ENTRY_TOKENS: Final = 1 / 4096  # that an entry of a token's context is charged for
_EVEN_TOKENS: Final = 16  # new tokens that make a step twice as long as none
_NOISE_LEAST: Final = 0.05  # of a step's time, as a share of it
_NOISE_MOST: Final = 0.5
_NOISE_GAIN: Final = 1 / 16
_DRIFT: Final = 0.02  # of a coefficient from step to step, as a share of it
_DOUBT_MAX: Final = 4.0  # of a coefficient, as a share of it
_SURPRISE: Final = 9.0  # times the expected variance: a larger squared error is a surprise
_SURPRISE_MOST: Final = 1e4
_OUTLIER: Final = 4.0  # times the prediction: longer steps count as this
_ACCURATE: Final = 0.03  # of a step's time: after smaller errors not each step is learned
_TEACHES: Final = 4  # one of so many steps that were predicted well is learned
_ENDLESS: Final = float("inf")
_SECONDS_LEAST: Final = 1e-6  # of a step, and of a row in it
_SECONDS_MOST: Final = 1e9
_TOKENS_MAX: Final = 1 << 16  # of a step
_MARGIN: Final = 0.9  # of a bound in seconds: the prediction is not exact

# Features of a load in addition to its tokens. Coefficients have the same order.
ENTRIES: Final = 0  # thousands of entries that rows of one token read
PRODUCTS: Final = 1  # thousands of entries that all tokens of longer rows read
TRUNCATED: Final = 2  # places sampled with top_k, top_p or min_p
LISTED: Final = 3  # places that return the best tokens
DENSE: Final = 4  # places that return logits, or chosen log-probabilities
BIASED: Final = 5  # places with a bias or a mask of their own
FORMED: Final = 6  # 1.0 of a step that the host forms, 0.0 of a look-ahead step
ADAPTED: Final = 7  # tokens that an adapter computes
_FEATURES: Final = 8
_FIRST: Final = 1 + len(_SEGMENTS)  # coefficients: a step's, each segment's, then the features'
_SIZE: Final = _FIRST + 8


Float64 = npt.NDArray[np.float64]


class StepLoad:
    """The work that a step, or a tenant's part of it, brings to the device."""

    __slots__ = ("features", "seconds", "tokens")

    def __init__(self) -> None:
        self.tokens = 0  # new ones
        self.features = [0.0] * _FEATURES
        self.seconds = 0.0  # that are known beforehand: of bitmasks

    def add(self, request: Request, start: int, count: int) -> None:
        self.tokens += count
        features = self.features
        length = request.file.length + start
        if count == 1:
            features[ENTRIES] += 0.001 * (length + 1)
        else:
            features[PRODUCTS] += 0.001 * count * (length + 0.5 * (count + 1))
        options = request.options
        if options is not DEFAULT:
            if options.adapter:
                features[ADAPTED] += count
            if start + count == request.count:
                _add_places(features, options, request.count)
        if request.matcher is not None:
            self.seconds += request.matcher.seconds

    def add_entry(self, length: int) -> None:
        """Add a plain row of one token behind so many entries."""
        self.tokens += 1
        self.features[ENTRIES] += 0.001 * (length + 1)

    def part(self, share: float) -> "StepLoad":
        found = StepLoad()
        found.tokens = max(int(share * self.tokens), 1)
        found.features = [share * each for each in self.features]
        found.features[FORMED] = self.features[FORMED]
        found.seconds = share * self.seconds
        return found


def total_load(loads: Iterable[StepLoad]) -> StepLoad:
    whole = StepLoad()
    for load in loads:
        whole.tokens += load.tokens
        whole.features = [a + b for a, b in zip(whole.features, load.features, strict=True)]
        whole.seconds += load.seconds
    return whole


def _add_places(features: list[float], options: PredOptions, count: int) -> None:
    get, places = options.get, float(options.places(count))
    if get is Get.LOGITS or get is Get.OF:
        features[DENSE] += places
    elif get is Get.TOP or options.logprobs:
        features[LISTED] += places
    sampling = options.sampling
    if sampling is not None and (sampling.top_k or sampling.top_p < 1.0 or sampling.min_p):
        features[TRUNCATED] += places
    if options.shapes_logits:
        features[BIASED] += places


class StepCost:
    """Predicts seconds, and learns from measured ones."""

    def __init__(self) -> None:
        self._values = [0.0] * _SIZE  # seconds
        self._units = np.zeros(_SIZE)  # their order of magnitude
        self._covariance = np.zeros((_SIZE, _SIZE))
        self._noise = _NOISE_LEAST  # recent mean, as a share of a step's time
        self._token = _TOKEN_SECONDS
        self._decode, self._entry = _DECODE_TOKENS, _ENTRY_TOKENS  # in tokens
        self.known = False
        self.tried = 0  # the most new tokens of a step so far
        self._predicted = 0  # consecutive steps that were predicted well

    # -- Prediction ------------------------------------------------------------------------------
    def base(self, tokens: float) -> float:
        """Return the seconds of a step of so many new tokens, without its rows."""
        if tokens <= 0.0:
            return 0.0
        values = self._values
        found, tried, slope = values[0], float(self.tried), 0.0
        for index, start in enumerate(_SEGMENTS):
            if tokens <= start:
                break
            end = _SEGMENTS[index + 1] if index + 1 < len(_SEGMENTS) else _ENDLESS
            if tried > start:  # otherwise unknown: the slope of the range before
                slope = values[1 + index]
            found += slope * (min(tokens, end) - start)
        return found

    def seconds(self, load: StepLoad) -> float:
        return self.base(load.tokens) + self.rows_seconds(load)

    def rows_seconds(self, load: StepLoad) -> float:
        return self._features_seconds(load.features, load.seconds)

    def _features_seconds(self, features: list[float], found: float) -> float:
        for index, amount in enumerate(features):
            if amount:
                found += amount * self._values[_FIRST + index]
        return found

    def row_seconds(self, request: Request, start: int, count: int) -> float:
        """Return the seconds that tokens [start, start + count) add to the base."""
        length = request.file.length + start
        values = self._values
        if count == 1:
            found = 0.001 * (length + 1) * values[_FIRST + ENTRIES]
        else:
            found = 0.001 * count * (length + 0.5 * (count + 1)) * values[_FIRST + PRODUCTS]
        if request.matcher is not None:
            found += request.matcher.seconds
        if request.options is not DEFAULT:
            if request.options.adapter:
                found += count * values[_FIRST + ADAPTED]
            if start + count == request.count:
                found += self._places_seconds(request)
        return found

    def _places_seconds(self, request: Request) -> float:
        features = [0.0] * _FEATURES
        _add_places(features, request.options, request.count)
        return self._features_seconds(features, 0.0)

    def tokens_within(self, seconds: float) -> int:
        """Return the most new tokens whose base is at most `seconds`; 0: not even one."""
        if not self.known:
            return 0
        return bisect_right(range(1, _TOKENS_MAX + 1), seconds, key=self.base)

    def prompt_tokens(self, decodes: int, seconds: float) -> int:
        """Return how many prompt tokens fit next to so many decodes within `seconds`.

        At least PREFILL_TOKENS_MIN, and at most twice what was tried. While nothing is known: one
        quantum.
        """
        if not self.known:
            return PREFILL_QUANTUM_TOKENS
        fits = self.tokens_within(seconds * _MARGIN) - decodes
        return max(min(fits, 2 * max(self.tried, PREFILL_QUANTUM_TOKENS)), PREFILL_TOKENS_MIN)

    # -- Charges ---------------------------------------------------------------------------------
    @property
    def token_seconds(self) -> float:
        """The seconds of a token in a large step; 0.0: not known yet."""
        return self._token if self.tried >= PREFILL_TOKENS_MIN else 0.0

    @property
    def host_seconds(self) -> float:
        """The seconds that the host adds to a step that it forms."""
        return self._values[_FIRST + FORMED]

    @property
    def service_seconds(self) -> float:
        """The seconds that a token is charged for, measured or not."""
        return self._token

    def cost(self, request: Request, tokens: int) -> float:
        """Return what a request's next tokens are charged for, in tokens.

        Not in seconds, so that charges before the first measurement do not count for more.
        """
        before = request.file.length + request.placed
        if request.count == 1:
            found = self._decode + self._entry * (before + 1)
        else:
            found = tokens * (1.0 + self._entry * (before + 0.5 * (tokens + 1)))
        if request.options is not DEFAULT:
            if request.options.adapter:
                found += tokens * self._values[_FIRST + ADAPTED] / self._token
            if request.placed + tokens >= request.count:
                found += self._places_seconds(request) / self._token
        return found

    # -- Learning --------------------------------------------------------------------------------
    def learn(self, load: StepLoad, seconds: float) -> None:
        tokens = load.tokens
        if not tokens or not 0.0 <= seconds < _SECONDS_MOST:
            return
        seconds = max(seconds, _SECONDS_LEAST)
        if not self.known:
            self._begin(tokens, max(seconds - load.seconds, _SECONDS_LEAST))
        self._try(tokens)
        predicted = self.seconds(load)
        error = min(seconds, _OUTLIER * predicted or seconds) - predicted
        if abs(error) <= _ACCURATE * seconds:
            self._predicted += 1
            if self._predicted % _TEACHES:
                return
        else:
            self._predicted = 0
        self._correct(load, error, max(seconds, predicted))
        if self.tried >= PREFILL_TOKENS_MIN:
            self._settle_rows()

    def _begin(self, tokens: int, seconds: float) -> None:
        """Initialise from the first step: `_EVEN_TOKENS` tokens double the time of none."""
        self.known, self.tried = True, tokens
        values, units = self._values, self._units
        values[0] = seconds * _EVEN_TOKENS / (_EVEN_TOKENS + tokens)
        slope = (seconds - values[0]) / tokens
        units[:] = slope
        for index in range(1, _FIRST):
            values[index] = slope
        units[0] = units[_FIRST + FORMED] = values[0]
        units[_FIRST + FORMED] *= 0.1
        np.fill_diagonal(self._covariance, units**2)

    def _try(self, tokens: int) -> None:
        """Record a step's size; a range that it is the first in starts as the one before."""
        if tokens <= self.tried:
            return
        for index in range(1, len(_SEGMENTS)):
            if self.tried <= _SEGMENTS[index] < tokens:
                self._values[1 + index] = self._values[index]
        self.tried = tokens

    def _correct(self, load: StepLoad, error: float, scale: float) -> None:
        x = np.array(_used(load))
        off = min(abs(error) / scale, _NOISE_MOST)
        self._noise += (max(off, _NOISE_LEAST) - self._noise) * _NOISE_GAIN
        noise = (self._noise * scale) ** 2
        known = float(x @ self._covariance @ x)
        if error * error > _SURPRISE * (known + noise):  # the coefficients are less certain
            # Anything may delay a step, but a step that was faster shows what it really takes.
            times = _SURPRISE if error > 0.0 else error * error / max(known, 1e-30)
            self._covariance *= min(max(times, _SURPRISE), _SURPRISE_MOST)
        clipped: list[int] = []
        while True:
            before = float(x @ np.array(self._values))
            below = self._apply(x, error, noise)
            if not below:
                break
            clipped += below  # the other coefficients take the rest of the error
            self._covariance[below, :] = self._covariance[:, below] = 0.0
            error -= float(x @ np.array(self._values)) - before
        for index in clipped:
            self._covariance[index, index] = self._units[index] ** 2
        self._drift(x)

    def _apply(self, x: Float64, error: float, noise: float) -> list[int]:
        """Move the coefficients by their part of an error; return those clipped at zero."""
        covariance, values = self._covariance, self._values
        spread = covariance @ x
        gain = spread / (float(x @ spread) + noise)
        covariance -= np.outer(gain, spread)
        below = []
        for index, change in enumerate((gain * error).tolist()):
            values[index] += change
            if values[index] < 0.0:
                values[index] = 0.0
                below.append(index)
        return below

    def _drift(self, x: Float64) -> None:
        """Let the coefficients in use grow less certain with each step, within bounds."""
        sizes = np.maximum(np.array(self._values), self._units)
        covariance = self._covariance
        diagonal = np.maximum(covariance.diagonal(), 0.0)
        np.fill_diagonal(covariance, diagonal + np.where(x > 0.0, (_DRIFT * sizes) ** 2, 0.0))
        largest = np.maximum((_DOUBT_MAX * sizes) ** 2, 1e-300)
        if (diagonal > largest).any():
            shrink = np.sqrt(largest / np.maximum(diagonal, largest))
            covariance *= np.outer(shrink, shrink)

    def _settle_rows(self) -> None:
        """Set what rows are charged from the coefficients."""
        token = max(self.base(self.tried) / self.tried, _SECONDS_LEAST)
        self._token, self._decode = token, 1.0
        self._entry = 0.001 * self._values[_FIRST + ENTRIES] / token


def _used(load: StepLoad) -> list[float]:
    """Return how much of each coefficient a load's step takes."""
    tokens, found = float(load.tokens), [1.0]
    for index, start in enumerate(_SEGMENTS):
        end = _SEGMENTS[index + 1] if index + 1 < len(_SEGMENTS) else _ENDLESS
        found.append(max(min(tokens, end) - start, 0.0))
    return found + load.features
