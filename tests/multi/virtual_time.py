"""Time that only passes where a device says that it works: measurements in it are exact."""

from __future__ import annotations

from collections import Counter

from partita_hetero.cost import clock
from partita_hetero.executors.parallel import Parallel
from partita_hetero.tuning.trial_run import Trial

from . import fakes, lossy

CALL = 1e-6
"""Seconds of each call on top, as nothing takes no time."""


class VirtualTime:
    """Stands in for the module ``time``, and for what works on several threads.

    Attributes:
        now: Seconds since the beginning.
        worked: Device to the seconds for which it has worked.
        computed: Processor seconds of all devices, with those of threads that spin.
        load: The share of the processors that other processes use until ``loaded_until``; devices
            take so much longer.
        spinner: The device whose threads spin until ``spins_until``, when it has not worked since.
    """

    def __init__(self):
        self.now = 0.0
        self.worked = Counter()
        self.computed = 0.0
        self.spinner, self.spins_until = "", 0.0
        self.load, self.loaded_until, self.others = 0.0, float("inf"), 0.0

    def seconds(self):
        return self.now

    def sleep(self, seconds, device=""):
        if device and device != self.spinner and self.now < self.spins_until:
            seconds *= SHARED
        if self.now < self.loaded_until:
            seconds /= 1 - self.load
        self.worked[device] += seconds + CALL
        self.computed += seconds + CALL
        self.rest(seconds + CALL)

    def rest(self, seconds):
        """Lets time pass in which nothing works, but for threads that spin."""
        self.computed += max(0.0, min(seconds, self.spins_until - self.now))
        self.others += self.load * max(0.0, min(seconds, self.loaded_until - self.now))
        self.now += seconds

    def others_seconds(self):
        return self.others

    def spin(self, seconds, device):
        """Has idle threads of a device look for work for so long."""
        self.spinner, self.spins_until = device, self.now + seconds

    def processor_seconds(self):
        return self.computed

    def run_parallel(self, schedule, run, cancelled):
        """PARALLEL as it would go: a step starts when all it waits for has ended and has a lane."""
        begin = self.now
        waiting = list(schedule.waiting)
        due = [begin] * schedule.count
        free = {lane: [begin] * count for lane, count in schedule.capacity.items()}
        ready = [index for index in range(schedule.count) if not waiting[index]]
        end = begin

        def start_of(index):
            return max(due[index], min(free.get(schedule.devices[index], [begin])))

        while ready:
            index = min(ready, key=lambda index: (start_of(index), index))
            ready.remove(index)
            lane = free.get(schedule.devices[index])
            self.now = start_of(index)
            run(index)
            if lane is not None:
                lane[lane.index(min(lane))] = self.now
            end = max(end, self.now)
            for follower in schedule.followers[index]:
                due[follower] = max(due[follower], self.now)
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.append(follower)
        self.now = end

    def seconds_per_request(self, trial, requests, at_once):
        """What a pipeline of requests would take for each: the time of its busiest device.

        A request that is done begins anew, so that one on fast devices does more of them.
        """
        requests_there = [trial.compiled.create_infer_request() for _ in range(at_once)]
        busy, uses = Counter(), {one.runner: set() for one in requests_there}
        for _ in range(requests):
            runner = min(uses, key=lambda one: max((busy[name] for name in uses[one]), default=0))
            before = self.worked.copy()
            runner.run(trial.inputs)
            took = self.worked - before
            busy += took
            uses[runner] |= set(took)
        return max(busy.values()) / requests


SHARED = 3.0
"""Times as long as usual a device takes beside another one's threads that spin."""

TIME = VirtualTime()


def install(patch):
    """Lets HETERO measure in virtual time."""
    patch.setattr(clock, "seconds", TIME.seconds)
    patch.setattr(clock, "processor_seconds", TIME.processor_seconds)
    patch.setattr(clock, "others_seconds", TIME.others_seconds)
    patch.setattr(clock, "sleep", TIME.rest)
    patch.setattr(fakes, "time", TIME)
    patch.setattr(lossy, "time", TIME)
    patch.setattr(Parallel, "run", lambda self, *args: TIME.run_parallel(*args))
    patch.setattr(Trial, "seconds_per_request", lambda *args: TIME.seconds_per_request(*args))
