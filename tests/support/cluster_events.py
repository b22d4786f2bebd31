"""What happens to the cluster of `cluster_soak.py`, one function an event."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from penstock.broker.store.base import paths
from support.cluster_soak import ClusterSoak
from support.patience import until
from support.small_disk import SmallDisk

PAUSE_S = CUT_S = (0.2, 8.0)
Event = Callable[[ClusterSoak], None]


def kill(soak: ClusterSoak) -> None:
    """kill -9 of a broker; it is back a little later."""
    number = soak.someone()
    soak.world.brokers[number].kill()
    time.sleep(soak.dice.uniform(0, 6))
    soak.world.brokers[number].start()


def kill_quickly(soak: ClusterSoak) -> None:
    """kill -9 of a broker that is started at once, several times."""
    number = soak.someone()
    for _ in range(soak.dice.randint(2, 4)):
        soak.world.brokers[number].kill()
        soak.world.brokers[number].start()
        time.sleep(soak.dice.uniform(0, 0.5))


def kill_all(soak: ClusterSoak) -> None:
    """kill -9 of all brokers."""
    for broker in soak.world.brokers.values():
        broker.kill()
    for number in in_any_order(soak):
        soak.world.brokers[number].start()


def kill_one_while_another_is_paused(soak: ClusterSoak) -> None:
    """The leader is killed while a follower is stopped, which wakes after the election."""
    killed = soak.leader()
    paused = soak.dice.choice([number for number in soak.world.brokers if number != killed])
    soak.world.pause(paused)
    try:
        soak.world.brokers[killed].kill()
        time.sleep(soak.dice.uniform(0, 6))
    finally:
        soak.world.resume(paused)
    time.sleep(soak.dice.uniform(0, 2))
    soak.world.brokers[killed].start()


def pause(soak: ClusterSoak) -> None:
    """SIGSTOP of a broker, for less or for more than its session lasts."""
    number = soak.someone()
    soak.world.pause(number)
    try:
        time.sleep(soak.dice.uniform(*PAUSE_S))
    finally:
        soak.world.resume(number)


def restart(soak: ClusterSoak) -> None:
    """A broker is stopped as by an operator, and started."""
    number = soak.someone()
    soak.world.brokers[number].stop()
    soak.world.brokers[number].start()


def restart_in_turn(soak: ClusterSoak) -> None:
    """All of them, one after the other, each once the cluster is whole."""
    for number in sorted(soak.world.brokers):
        soak.world.brokers[number].stop()
        soak.world.brokers[number].start()
        soak.until_whole()


def expel(soak: ClusterSoak) -> None:
    """Somebody deletes a broker's registration by hand."""
    soak.remove(paths.broker(soak.someone()))


def depose(soak: ClusterSoak) -> None:
    """Somebody deletes the controller's node by hand."""
    soak.remove(paths.CONTROLLER)


def kill_keeper(soak: ClusterSoak) -> None:
    """kill -9 of a member of the ensemble, its leader now and then."""
    server = soak.dice.choice(list(soak.servers))
    server.kill()
    time.sleep(soak.dice.uniform(0, 4))
    server.start()


def kill_keepers(soak: ClusterSoak) -> None:
    """The whole ensemble is away for a while, shorter or longer than sessions last."""
    for server in soak.servers:
        server.kill()
    time.sleep(soak.dice.uniform(0, 5))
    for server in soak.servers:
        server.launch()
    for server in soak.servers:
        until(server.serves, "the ensemble to serve again", server.log_text)


# Links


def cut_off(soak: ClusterSoak) -> None:
    """A broker is cut off from all others and from ZooKeeper, not from clients."""
    number = soak.someone()
    cut_links(soak, number, [*keepers(soak), *others(soak, number)])


def cut_off_from_keepers(soak: ClusterSoak) -> None:
    """A broker is cut off from ZooKeeper."""
    cut_links(soak, soak.someone(), keepers(soak))


def cut_off_from_brokers(soak: ClusterSoak) -> None:
    """A broker is cut off from all others."""
    number = soak.someone()
    cut_links(soak, number, others(soak, number))


def cut_off_from_controller(soak: ClusterSoak) -> None:
    """A broker is cut off from the controller."""
    controller = soak.controller()
    cut_links(soak, int(soak.dice.choice(others(soak, controller))), [str(controller)])


def cut_all_off_from_keepers(soak: ClusterSoak) -> None:
    """No broker reaches ZooKeeper."""
    for number in soak.world.brokers:
        soak.net.cut_off(str(number), *keepers(soak))
    wait_and_heal(soak)


def kill_one_while_another_is_cut_off(soak: ClusterSoak) -> None:
    """The leader is killed while a follower is cut off, which comes back after the election."""
    killed = soak.leader()
    number = soak.dice.choice([number for number in soak.world.brokers if number != killed])
    soak.net.cut_off(str(number), *keepers(soak), *others(soak, number))
    soak.world.brokers[killed].kill()
    wait_and_heal(soak)
    time.sleep(soak.dice.uniform(0, 2))
    soak.world.brokers[killed].start()


def cut_links(soak: ClusterSoak, number: int, to: Sequence[str]) -> None:
    """Cut the links of a broker to these, both ways or one way, for a while."""
    there, back = [(str(number), other) for other in to], [(other, str(number)) for other in to]
    soak.net.cut(*soak.dice.choice([there, back, there + back, there + back]))
    wait_and_heal(soak)


def wait_and_heal(soak: ClusterSoak) -> None:
    """All links pass bytes again after less or more time than a session lasts."""
    try:
        time.sleep(soak.dice.uniform(*CUT_S))
    finally:
        soak.net.heal()


# Power


def cut_power(soak: ClusterSoak) -> None:
    """A broker's machine loses power. Half of the time its connections don't end with it, as nobody is there to end them."""
    number = soak.someone()
    soak.flush_some(number)
    if soak.dice.random() < 0.5:
        soak.net.cut_off(str(number), *keepers(soak), *others(soak, number))
    soak.lose_power(number)
    time.sleep(soak.dice.uniform(0, 6))
    soak.net.heal()
    soak.regain_power(number)


def cut_power_again(soak: ClusterSoak) -> None:
    """A machine loses power again while its broker starts."""
    number = soak.someone()
    soak.lose_power(number)
    soak.mount(number)
    soak.world.brokers[number].launch()
    time.sleep(soak.dice.uniform(0, 2))
    soak.lose_power(number)
    soak.regain_power(number)


def cut_power_while_another_is_away(soak: ClusterSoak) -> None:
    """A machine loses power while another broker is killed, paused or cut off: two of three are left with what they have."""
    away = soak.someone()
    number = int(soak.dice.choice(others(soak, away)))
    soak.world.brokers[away].kill()
    time.sleep(soak.dice.uniform(0, 6))
    soak.lose_power(number)
    time.sleep(soak.dice.uniform(0, 3))
    if soak.dice.random() < 0.5:
        soak.world.brokers[away].start()
        soak.regain_power(number)
    else:
        soak.regain_power(number)
        soak.world.brokers[away].start()


def cut_power_of_two(soak: ClusterSoak) -> None:
    """Two of three machines lose power at once."""
    numbers = in_any_order(soak)[:2]
    soak.flush_some(*numbers)
    soak.lose_power(*numbers)
    time.sleep(soak.dice.uniform(0, 4))
    soak.regain_power(*numbers)


def cut_power_of_all(soak: ClusterSoak) -> None:
    """All machines lose power at once."""
    numbers = in_any_order(soak)
    soak.flush_some(*numbers)
    soak.lose_power(*numbers)
    soak.regain_power(*numbers)


# Disks and clocks


def fill_disk(soak: ClusterSoak) -> None:
    """The disk of a broker is full."""
    number = soak.someone()
    disk = SmallDisk(soak.disks[number].path)
    try:
        for _ in range(2):
            disk.fill()
            soak.until_served("fill_disk")
            time.sleep(soak.dice.uniform(0, 4))
    finally:
        disk.drain()


def freeze_disk(soak: ClusterSoak) -> None:
    """The file system of a broker is frozen, until others serve in its place."""
    disk = soak.disks[soak.someone()]
    disk.freeze()
    _bear(soak, "freeze_disk", 4, disk.thaw)


def freeze_disk_shortly(soak: ClusterSoak) -> None:
    """The file system of a broker is frozen for less or for a little more than the broker bears."""
    disk = soak.disks[soak.someone()]
    disk.freeze()
    try:
        time.sleep(soak.dice.uniform(0.1, 4))
    finally:
        disk.thaw()


def set_clock(soak: ClusterSoak) -> None:
    """A broker's clock jumps, ahead or back, and is set right again."""
    clock = soak.clocks[soak.someone()]
    clock.set_ahead(soak.dice.choice([-86_400, -600, -5, 5, 600, 3 * 86_400]))
    _bear(soak, "set_clock", 6, partial(clock.set_ahead, 0))


def _bear(soak: ClusterSoak, what: str, most_s: float, mend: Callable[[], None]) -> None:
    """Others serve in spite of what has happened, which lasts a little longer and is mended then."""
    try:
        soak.until_served(what)
        time.sleep(soak.dice.uniform(0, most_s))
    finally:
        mend()


def in_any_order(soak: ClusterSoak) -> list[int]:
    """The brokers."""
    return soak.dice.sample(sorted(soak.world.brokers), len(soak.world.brokers))


def keepers(soak: ClusterSoak) -> list[str]:
    """The names of the ensemble's members in the net."""
    return [f"z{at}" for at in range(1, len(soak.servers) + 1)]


def others(soak: ClusterSoak, number: int) -> list[str]:
    """The names of the other brokers in the net."""
    return [str(other) for other in soak.world.brokers if other != number]


EVENTS: tuple[Event, ...] = (
    kill, kill, kill_quickly, kill_all, kill_one_while_another_is_paused, pause, pause, restart, restart_in_turn, expel, depose,
    kill_keeper, kill_keepers, cut_off, cut_off_from_keepers, cut_off_from_brokers, cut_off_from_controller,
    cut_all_off_from_keepers, kill_one_while_another_is_cut_off, set_clock,
)  # fmt: skip
POWER_CUTS: tuple[Event, ...] = (
    cut_power, cut_power, cut_power, cut_power_again, cut_power_while_another_is_away, cut_power_of_two, cut_power_of_all,
)  # fmt: skip
DISKS: tuple[Event, ...] = (fill_disk, freeze_disk, freeze_disk_shortly)
