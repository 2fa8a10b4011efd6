"""Deliberate faults, each of a kind that real systems had, with the test that must fail when it is there.

`test_broken_builds.py` runs that test in a process of its own with the fault put in. A fault is a function that breaks
the package in memory; nothing of it is on disk.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

EVIDENCE = "packages/evidence/tests"


class Fault(NamedTuple):
    test: str  # from the root of the repository
    apply: Callable[[], None]


FAULTS: dict[str, Fault] = {}
FOLLOWS = "test_users_clip_to_the_norm_of_the_round_and_the_next_follows_the_noised_bits"
DECLARED = "test_sampling_denominator_and_noise_are_those_of_the_declared_population"
REPLAY = "test_one_user_moves_a_round_by_at_most_the_sensitivity"


def caught_by(path: str, test: str, tests: str = "tests"):
    """The fault that follows must make this test fail."""

    def register(apply: Callable[[], None]) -> Callable[[], None]:
        FAULTS[apply.__name__] = Fault(f"{tests}/{path}::{test}", apply)
        return apply

    return register


def write_otherwise(module: ModuleType, name: str, old: str, new: str) -> None:
    """Compile a function of a module again, with one piece of its text replaced."""
    source = inspect.getsource(inspect.unwrap(getattr(module, name)))
    assert source.count(old) == 1, f"{name} has {source.count(old)} times {old!r}"
    exec(source.replace(old, new), vars(module))


# --- data -----------------------------------------------------------------------------------------------------------


@caught_by("unit/data/test_reddit.py", "test_comments_of_nobody_and_of_programs_are_left_out")
def words_of_another_person():
    """What a comment quotes counts as the text of the one who quotes it."""
    from sottovoce.data import reddit

    reddit.own_words = lambda body: body


# --- devices --------------------------------------------------------------------------------------------------------


@caught_by(
    "unit/federation/aggregation/test_plain.py",
    "test_what_a_hostile_device_adds_is_within_the_sensitivity_of_both_estimators",
)
def a_device_that_is_believed():
    """The server does not clip again what a device sends."""
    import numpy as np

    from sottovoce.federation.aggregation import plain

    plain.within = lambda leaves, bound: [leaf.astype(np.int64) for leaf in leaves]


@caught_by("unit/federation/aggregation/test_plain.py", "test_an_answer_longer_than_an_honest_one_is_not_even_read")
def answers_of_any_length():
    """The server reads whatever a device sends, as if no model had a size."""
    from sottovoce.federation.aggregation import plain

    plain.largest_answer = lambda *sizes: 2**31


@caught_by(
    "unit/federation/aggregation/test_plain.py", "test_a_run_goes_on_with_the_others_and_again_after_resume"
)  # fmt: skip
def answers_that_are_taken_at_their_word():
    """What a device says is read by Python's reader as it is, and its errors are the server's."""
    import json

    from sottovoce.federation import messages

    def unpack(message, max_facts):
        from safetensors.numpy import load

        arrays = load(message)
        facts = json.loads(arrays.pop("facts").tobytes())
        return facts, arrays, [arrays.pop(name) for name in sorted(name for name in arrays if name.isdecimal())]

    def raised(self, device, message):
        answer = messages.read_answer(message)
        return real(self, device, message) if answer else ""

    from sottovoce.federation.aggregation.plain import Aggregator

    real = Aggregator.take
    messages.unpack, Aggregator.take = unpack, raised


TOO_MUCH = "test_a_device_that_sends_too_much_is_cut_off_until_the_next_round_and_the_others_are_not"


REFUSED = "test_a_device_that_is_refused_leaves_nothing_behind"


@caught_by("unit/commands/test_federate.py", REFUSED)
def a_secret_of_a_device_that_is_refused():
    """A device draws its secret before its place is looked at."""
    from sottovoce.commands import federate

    federate.check_registered = lambda *_: None


@caught_by("unit/federation/test_roster.py", "test_a_roster_that_is_damaged_is_refused")
def two_devices_at_one_place():
    """A roster is believed, whatever places it gives."""
    from sottovoce.federation.roster import Roster

    Roster._check = lambda self: None


@caught_by("unit/runs/test_lease.py", "test_whose_token_is_damaged_does_not_hold_the_lease")
def a_token_that_is_the_name_of_a_path():
    """What stands in the files of a lease is taken as it is."""
    from sottovoce.runs import lease

    lease._read = lambda path: path.read_text(encoding="latin-1") if path.exists() else ""


@caught_by("unit/federation/flower/test_proxy.py", "test_a_device_is_known_by_its_signature")
def a_key_that_anybody_may_name():
    """A device is known by the key that a request names, whoever signed it."""
    from base64 import b64decode

    from sottovoce.federation.flower import proxy

    proxy.signing_key = lambda headers: b64decode(headers.get("flwr-public-key", ""))


SIGNED = "test_a_request_on_a_line_reaches_the_server_in_the_name_of_who_signed_it"


@caught_by("unit/federation/flower/test_proxy.py", SIGNED)
def lines_in_any_name():
    """A device is known on its line by the name that it gives."""
    from sottovoce.federation.flower import line

    line.caller = lambda headers, public_keys: headers.get(line.DEVICE)


@caught_by("unit/federation/flower/test_proxy.py", SIGNED)
def signatures_of_the_name_alone():
    """What is signed on a line has no time and no answer in it: whoever sees one can send another answer with it."""
    from sottovoce.federation.flower import line

    line._claim = lambda headers: headers[line.DEVICE].encode()


LINES = "test_a_line_brings_messages_to_devices_that_wait_and_their_answers_under_their_names"


@caught_by("unit/federation/flower/test_line.py", LINES)
def answers_that_count_twice_on_a_line():
    """Whatever a device sends on its line counts, the second answer as well."""
    from sottovoce.federation.flower.line import _Desk

    _Desk.counts = lambda self, have: bool(have)


@caught_by("unit/federation/flower/test_sockets.py", "test_a_server_listens_at_its_socket_and_at_no_port")
def sockets_that_others_reach():
    """The folder of Flower's sockets is open to every user of the machine."""
    from sottovoce.federation.flower import sockets

    sockets.check_private = lambda folder: folder.chmod(0o755)


@caught_by("unit/federation/test_device.py", "test_every_vector_has_noise_of_its_own")
def vectors_with_the_noise_of_another_round():
    """All vectors of a device have the noise of its first: two rounds differ by updates alone."""
    from sottovoce.federation import device

    real, drawn = device.with_own_noise, {}

    def noised(vector, mechanism, clip_norms):
        first = drawn.setdefault(vector.size, real(vector * 0, mechanism, clip_norms))
        return vector + first

    device.with_own_noise = noised


OTHERS = "test_one_person_changes_nothing_for_all_others"
TWO_SILOS = "test_a_person_in_two_silos_moves_the_sum_by_no_more_than_one_user"


@caught_by("equivalence/test_silo_neighbours.py", TWO_SILOS)
def silos_that_clip_to_the_norm_of_a_person():
    """Every silo clips to S, whatever else its people are users of."""
    from sottovoce.build import assembly

    real = assembly.build_mechanism

    def whole(recipe, layers):
        alone = real(recipe.replace(federation={"max_silos": 1}), layers)
        return dataclasses.replace(real(recipe, layers), clipping=alone.clipping)

    assembly.build_mechanism = whole


@caught_by("equivalence/test_silo_neighbours.py", TWO_SILOS)
def noise_for_one_silo_of_a_person():
    """The sensitivity is that of S/m, as if only one silo of a person ever drew them."""
    from sottovoce.privacy.sampling import Sampler

    Sampler.most_updates = 1


@caught_by(
    "unit/privacy/test_sampling.py", "test_a_person_in_several_silos_is_charged_for_the_coins_of_all"
)  # fmt: skip
def silos_charged_by_the_coin_of_one():
    """A round is charged as if one silo alone drew a person, with S/m."""
    from sottovoce.privacy.sampling import Poisson
    from sottovoce_evidence.accounting.events import SampledGaussian

    Poisson.event = lambda self, z: SampledGaussian(z * self.silos, "poisson", self.user_rate)


@caught_by("unit/federation/test_device.py", "test_the_clip_norm_that_counts_is_the_one_of_the_round")
def a_device_clips_to_what_the_server_says():
    """A device takes the clip norm of a task, also above the one of the recipe and its silos."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.clip_norms
    Mechanism.clip_norms = lambda self, number, tracked: real(self, number, tracked) * (1 if self.tracking else 1e6)


@caught_by("unit/federation/test_limits.py", "test_a_run_that_bounds_participation_is_joined_no_more_than_that")
def a_device_trusts_the_server_with_the_separation():
    """A device joins whenever it is asked."""
    from sottovoce.federation.limits import Participation

    Participation._may_join = lambda self, task, row, limits, allowed: True


@caught_by("unit/federation/test_limits.py", "test_a_run_that_bounds_participation_is_joined_no_more_than_that")
def a_device_follows_a_server_that_changes_the_bounds():
    """What a user may do in a run is what the newest task says."""
    from sottovoce.federation.limits import Participation

    real = Participation.join

    def join(self, task, message, drawn, limits, allowed=None, *seen):
        self._allowed = {} if allowed is None else {task.run: allowed}
        return real(self, task, message, drawn, limits, allowed, *seen)

    Participation.join = join


@caught_by("end_to_end/test_federated_runs.py", "test_correlated_noise_over_devices_asks_only_who_is_free")
def everybody_is_asked():
    """The model goes to all registered devices, although the server decides who joins."""
    from sottovoce.federation.rounds import Coordinator

    Coordinator._asked = lambda self, assembly, run, number, payment: self.roster.registered


@caught_by("equivalence/test_device_neighbours.py", f"{OTHERS}[plain, min_separation, phone, removed]")
def phones_that_count_when_they_add_something():
    """A phone that was asked and adds nobody stays in the draw, and takes the turns of others."""
    from sottovoce.federation.aggregation.plain import Aggregator
    from sottovoce.federation.joined import Joined
    from sottovoce.federation.messages import read_answer

    take, free, idle = Aggregator.take, Joined.is_free, set()

    def taken(self, device, answer):
        if not read_answer(answer).users:
            idle.add(device)
        return take(self, device, answer)

    Aggregator.take = taken
    Joined.is_free = lambda self, device, number: device in idle or free(self, device, number)


@caught_by("unit/federation/test_joined.py", "test_an_attempt_that_is_begun_again_asks_the_same_devices")
def other_phones_when_an_attempt_is_begun_again():
    """A server that was killed draws again: the phones of before have joined, and are not in the sum."""
    from sottovoce.federation.joined import Joined

    Joined.asked = lambda self, number, attempt: None


@caught_by("unit/federation/aggregation/test_plain.py", "test_a_contribution_of_nobody_counts_and_moves_nothing")
def a_server_that_refuses_nobody():
    """The server takes no sum over nobody: how a device counts tells whether its users have text."""
    from sottovoce.federation.aggregation import plain
    from sottovoce.federation.messages import Code, Refused

    real = plain.Aggregator._check

    def check(self, answer, registered):
        real(self, answer, registered)
        if not answer.users:
            raise Refused(Code.BOUNDS)

    plain.Aggregator._check = check


@caught_by("unit/federation/test_device.py", "test_a_coin_follows_from_the_secret_and_the_release_alone")
def a_coin_flipped_at_every_message():
    """A device draws from fresh entropy, so that a message that comes twice flips the coin twice."""
    import os

    from sottovoce.federation import device
    from sottovoce.federation.limits import Participation

    device.blake2b = lambda *args, **kwargs: type("Fresh", (), {"digest": lambda self: os.urandom(32)})()
    Participation._note = lambda *args: None


@caught_by("unit/federation/test_frozen.py", "test_a_device_trains_beside_the_weights_of_the_server")
def frozen_weights_under_any_hash():
    """A device keeps whatever comes under the hash that its task names: others than the server's."""
    from sottovoce.federation import frozen

    frozen.digest = lambda arrays: type("Any", (str,), {"__ne__": lambda *_: False, "__eq__": lambda *_: True})()


@caught_by("equivalence/test_federation.py", "test_rounds_over_devices_are_the_simulated_rounds_on_the_same_cohorts")
def devices_with_frozen_weights_of_their_own():
    """A device trains beside the weights that it builds by itself, of another seed than the server's."""
    from sottovoce.federation.device import Device

    Device._with_frozen = lambda self, task, assembly: assembly


@caught_by("unit/federation/test_frozen.py", "test_a_run_keeps_the_part_that_it_began_with")
def other_frozen_weights_in_the_middle_of_a_run():
    """A device follows a server that changes the frozen part from round to round, or from device to device."""
    from sottovoce.federation.limits import Participation

    real = Participation.join

    def join(self, *arguments):
        self._frozen = {}
        return real(self, *arguments)

    Participation.join = join


# --- noise of devices -------------------------------------------------------------------------------------------------


@caught_by("unit/privacy/test_device_noise.py", "test_the_noise_of_the_honest_survivors_suffices")
def colluding_devices_are_counted_on():
    """The share of a device is for all survivors, those who may collude among them."""
    from sottovoce_evidence.device_noise import DeviceNoise

    DeviceNoise.honest = property(lambda self: self.survivors)


@caught_by(
    "unit/privacy/test_device_noise.py",
    "test_shares_of_honest_devices_have_the_declared_variance_as_they_are_drawn",
)
def shares_that_divide_the_deviation():
    """The standard deviation is divided among devices, where it is the variance that adds up."""
    from sottovoce_evidence.device_noise import DeviceNoise

    DeviceNoise.share = lambda self, steps: self.noise_multiplier * steps / self.honest


@caught_by(
    "equivalence/test_device_noise.py",
    "test_a_device_draws_new_noise_for_every_vector_and_none_where_the_server_does",
)
def noise_from_a_key_that_is_used_again():
    """A device draws the noise of all rounds from one key: the difference of two rounds has none."""
    from sottovoce.federation import device

    real = device.skellam
    device.skellam = lambda key, *rest: real(bytes(32), *rest)


@caught_by("unit/privacy/test_device_noise.py", "test_a_device_lets_a_user_join_as_often_as_is_charged")
def a_device_that_never_stops():
    """Nothing bounds how many rounds a user joins, and ε against the server is for fewer."""
    from sottovoce.privacy.mechanism import Mechanism

    Mechanism.joining = lambda self, rounds: self.sampler.participation(rounds)


@caught_by("equivalence/test_device_noise.py", "test_a_device_works_out_itself_what_holds_against_the_server")
def any_noise_that_the_server_likes():
    """A device does not ask what its noise comes to against the server."""
    from sottovoce.federation import device

    device._against_server = lambda mechanism, earlier: 0.0


SUMMED = "test_what_left_in_all_runs_together_is_within_the_owners_limit"


@caught_by("unit/federation/test_device.py", SUMMED)
def a_limit_for_each_run():
    """A server that begins a run under another name gets from a user what the owner allows, and gets it again."""
    from sottovoce.federation.limits import Participation

    Participation.seen_before = lambda self, run: ()


@caught_by("unit/federation/test_device.py", SUMMED)
def a_run_that_lowers_its_noise():
    """The server may ask for less noise in the middle of a run than the rounds before are counted with."""
    from sottovoce.federation.limits import Participation

    real = Participation.join

    def join(self, task, *rest):
        self._seen.pop(task.run, None)
        return real(self, task, *rest)

    Participation.join = join


@caught_by("unit/privacy/test_device_noise.py", "test_the_server_tops_up_to_the_noise_of_the_model")
def a_server_that_adds_nothing():
    """The model has the noise of the devices alone."""
    from sottovoce_evidence.device_noise import DeviceNoise

    DeviceNoise.top_up = lambda self, noise_multiplier, steps: 0.0


@caught_by(
    "equivalence/test_device_noise.py", "test_a_round_whose_sum_is_not_opened_has_all_of_the_noise[1.2]"
)  # fmt: skip
def noise_of_devices_that_nobody_drew():
    """The server counts on the noise of devices where no sum of theirs was opened: the model shows it."""
    from sottovoce.federation.aggregation.phases import DeviceSum

    DeviceSum.opened = property(lambda self: True)


@caught_by("unit/privacy/test_device_noise.py", "test_the_server_is_charged_every_round_of_a_user_without_sampling")
def sampling_that_hides_from_the_server():
    """ε against the server is amplified by coins that it sees."""
    from dataclasses import replace

    from sottovoce_evidence.device_noise import DeviceNoise

    real = DeviceNoise.against_server.fget
    DeviceNoise.against_server = property(lambda self: [(replace(e, user_rate=0.01), n) for e, n in real(self)])


@caught_by("unit/privacy/test_device_noise.py", "test_noise_is_over_all_that_a_person_moves_in_several_silos")
def device_noise_for_one_silo_of_a_person():
    """The noise of devices is over what one silo sends of a person, who is in several."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.steps
    Mechanism.steps = lambda self, clip_norms: real(self, clip_norms) / self.sampler.most_updates


@caught_by("unit/privacy/test_device_noise.py", "test_noise_is_over_all_that_a_person_moves_in_several_silos")
def coins_of_one_silo_alone():
    """A person in several silos is charged for what one of them draws and sends."""
    from sottovoce_evidence.accounting import SampledSkellam
    from sottovoce_evidence.device_noise import DeviceNoise

    def charged(self, event):
        return SampledSkellam(event.noise_multiplier, "poisson", event.example_rate, self.steps)

    DeviceNoise._charged = charged


@caught_by("equivalence/test_device_noise.py", "test_the_server_tells_a_person_no_better_than_is_charged")
def half_of_the_noise():
    """Devices draw half of the standard deviation that is charged."""
    from sottovoce.federation import device

    real = device.skellam
    device.skellam = lambda key, size, std: real(key, size, std / 2)


@caught_by("accounting/test_skellam.py", "test_l1_bounds_every_vector_of_whole_numbers", EVIDENCE)
def l1_of_a_single_coordinate():
    """The L1 norm of an update is taken to be its L2 norm."""
    from sottovoce_evidence.accounting import SampledSkellam

    SampledSkellam.l1 = property(lambda self: self.steps)


@caught_by("accounting/test_skellam.py", "test_the_divergence_has_the_terms_of_the_paper", EVIDENCE)
def skellam_noise_charged_as_gaussian():
    """The terms that a Skellam number has beyond a Gaussian are left out."""
    from sottovoce_evidence.accounting import skellam

    skellam.skellam_divergence = lambda order, l1, l2, variance: order * l2**2 / (2 * variance)


@caught_by("accounting/test_skellam.py", "test_where_the_noises_could_be_told_apart_it_costs_what_rdp_says", EVIDENCE)
def skellam_noise_taken_for_gaussian():
    """By PLD nothing is charged for what tells the two apart, however coarse the grid is."""
    from sottovoce_evidence.accounting import SampledSkellam

    SampledSkellam.apart = property(lambda self: 1e-40)


@caught_by("unit/privacy/test_skellam.py", "test_the_program_knows_the_chance_within_its_error")
def gaussian_noise_called_skellam():
    """The law that is drawn is a rounded Gaussian."""
    import jax.numpy as jnp

    from sottovoce.privacy import skellam

    real = skellam._chance

    def without_the_bend(cell, t, steps, numbers):
        x = steps / numbers[0]
        return jnp.exp((cell - 64 * x) * (cell + 64 * x) / 8192 - numbers[1]), real(cell, t, steps, numbers)[1]

    skellam._chance = without_the_bend


@caught_by("unit/privacy/test_skellam.py", "test_the_law_is_skellam")
def skellam_of_less_variance():
    """Both Poisson numbers have 0.98 of their mean."""
    from sottovoce.privacy import skellam

    real = skellam.scale_of
    skellam.scale_of = lambda std: real(0.98**0.5 * std)


# --- masked sums ----------------------------------------------------------------------------------------------------

PARTICIPANT, LIES = "unit/federation/masking/test_participant.py", "test_a_server_that_lies_is_refused_with_a_sentence"
UNIFORM = "test_what_the_server_and_the_colluding_see_of_a_device_is_uniform"


@caught_by(PARTICIPANT, "test_of_a_neighbour_that_is_gone_the_mask_key_is_given_and_not_the_self_mask")
def the_mask_key_of_every_neighbour_is_given():
    """A device takes all its neighbours for lost: with the self-masks that survivors give, all is open."""
    from sottovoce.federation.masking.participant import Participant

    real = Participant._unmask

    def unmask(self, signed):
        kept, self._kept = self._kept, {name: (pair[1], pair[1]) for name, pair in self._kept.items()}
        answer = real(self, signed)
        self._kept = kept
        return answer

    Participant._unmask = unmask


@caught_by(PARTICIPANT, f"{LIES}[a neighbour's keys are others]")
def keys_of_neighbours_that_nobody_signed():
    """A device believes the keys that the server sends: the server is then all its neighbours."""
    from sottovoce.federation.members import Membership

    Membership.has_signed = lambda self, name, signature, claim: True


@caught_by(PARTICIPANT, f"{LIES}[the neighbour signed its keys in another round]")
def keys_signed_for_no_round():
    """A signature of keys is not bound to its round: old ones, whose secrets were opened, are valid again."""
    from sottovoce.federation.masking import context, messages

    def claim(round_context, name, entry):
        return context.bind("keys", name, entry)

    messages.Advert.claim = staticmethod(claim)


@caught_by(PARTICIPANT, f"{LIES}[its keys are others]")
def keys_of_its_own_that_are_not_looked_at():
    """A device does not look for itself in the list: the server gives others keys in its name."""
    from sottovoce.federation.masking.participant import Participant

    real = Participant._share

    def share(self, found):
        own, place = Participant.shown, found.names.index(self._place.name)
        Participant.shown = property(lambda self: found.keys[place])
        try:
            return real(self, found)
        finally:
            Participant.shown = own

    Participant._share = share


@caught_by(PARTICIPANT, f"{LIES}[too few survivors]")
def survivors_as_few_as_the_server_likes():
    """A device signs any set that it is in: the sum over two is the other one's update."""
    from sottovoce.federation.masking.graph import Terms

    Terms.survivors = property(lambda self: 0, lambda self, value: None)


@caught_by(PARTICIPANT, "test_a_server_that_names_two_sets_of_survivors_does_not_open_both")
def a_quorum_of_two():
    """Few signatures are enough: a server that tells devices different survivors opens two sums."""
    from sottovoce.federation.masking import graph

    graph.quorum = lambda count, colluding: 2


@caught_by(PARTICIPANT, "test_a_message_that_is_repeated_gets_the_same_bytes_and_another_is_refused")
def a_phase_that_is_answered_as_often_as_it_is_asked():
    """A device forgets what it answered: it signs a second set of survivors."""
    from sottovoce.federation.masking.participant import Participant

    real = Participant.answer

    def answer(self, request, before_vector):
        self._answers = {}
        return real(self, request, before_vector)

    Participant.answer = answer


@caught_by(PARTICIPANT, "test_a_share_that_comes_back_to_its_sender_is_refused")
def shares_that_are_sealed_for_both_ends():
    """The key of a sealed share does not say who sends it to whom."""
    from sottovoce.federation.masking.participant import Participant

    real = Participant._seal
    Participant._seal = lambda self, found, other, sender, receiver: real(self, found, other, "", "")


@caught_by(PARTICIPANT, UNIFORM)
def masks_of_sixteen_bits():
    """The upper half of every number is not masked."""
    from sottovoce.federation.masking import masks

    real = masks._add_planes

    def add(sums, other, sign, carry):
        if len(sums) > 1 and not other[0].flags.owndata:
            other = [other[0] & 0xFFFF, other[1] * 0]
        real(sums, other, sign, carry)

    masks._add_planes = add


@caught_by(PARTICIPANT, UNIFORM)
def masks_of_its_own_alone():
    """A device masks with itself, and not with its neighbours: what opens the sum opens each vector."""
    from sottovoce.federation.masking.masks import Modular

    real = Modular.add_masks
    Modular.add_masks = lambda self, keys, sign=1: real(self, list(keys)[:1] if sign > 0 else (), sign)


@caught_by(PARTICIPANT, "test_keys_that_the_server_made_count_among_those_that_collude")
def devices_that_the_server_can_be():
    """A key that the server made is taken for one that its device made: with enough of them it is everybody else."""
    from sottovoce.federation.members import Membership

    Membership.made_by_server = lambda self, names: []


@caught_by(PARTICIPANT, "test_keys_are_fresh_in_every_round")
def a_mask_key_for_ever():
    """The seed of the mask key is the same in every round: two vectors under one mask show their difference."""
    from sottovoce.federation.masking import masks

    masks.new_seed = lambda: bytes(masks.SEED)


@caught_by("unit/federation/masking/test_masks.py", "test_a_key_that_gives_no_secret_is_refused")
def points_of_low_order():
    """A public key of low order is taken: everybody knows the mask."""
    from sottovoce.federation.masking import masks

    real = masks.agreed

    def agreed(key, public, bound):
        try:
            return real(key, public, bound)
        except masks.Refused:
            return masks.derived(bytes(32), bound)

    masks.agreed = agreed


@caught_by("unit/federation/masking/test_masks.py", "test_no_sum_over_the_declared_users_wraps_round")
def a_modulus_without_a_sign():
    """Half of the sums that the declared users can have look like others."""
    from sottovoce.federation.masking import masks

    real = masks.width_for
    masks.width_for = lambda users, noise=0: real(max(1, users // 2), noise // 2)


@caught_by(
    "unit/federation/aggregation/test_masked.py", "test_a_user_moves_a_spoiled_sum_by_no_more_than_their_contribution"
)
def a_sum_that_turns_into_its_opposite():
    """At the end of its range, where a hostile device brought it, one honest user more changes all of it."""
    from sottovoce.federation.masking import masks

    masks.folded = lambda numbers, width: numbers


@caught_by("unit/federation/aggregation/test_masked.py", "test_a_user_whose_device_is_away_changes_no_bound")
def a_bound_that_follows_from_who_takes_part():
    """One user more moves the bound, and with it a spoiled sum, by S in every number."""
    from dataclasses import replace

    from sottovoce.federation.aggregation.masked import MaskedAggregator

    real = MaskedAggregator._key_list

    def here_alone(self):
        here = sum(self._asked.registered[name] for name in self._adverts)
        self._asked = replace(self._asked, users=here)
        return real(self)

    MaskedAggregator._key_list = here_alone


@caught_by("unit/federation/test_rounds.py", "test_the_server_bounds_a_sum_by_all_registered_users_whoever_is_asked")
def a_bound_that_follows_from_who_is_asked():
    """The same where the server names the users: those of the devices it asks, and not of all."""
    from sottovoce.federation import rounds

    real = rounds.Asked
    rounds.Asked = lambda here, public_keys, users, admit: real(here, public_keys, sum(here.values()), admit)


@caught_by("unit/federation/masking/test_graph.py", "test_both_secrets_of_a_device_can_never_be_opened")
def a_threshold_without_those_that_collude():
    """More than half of the neighbours open a secret; with some that collude, that is enough for both."""
    from sottovoce.federation.masking import graph

    graph.threshold = lambda degree, colluding: degree // 2 + 1


@caught_by("unit/federation/masking/test_graph.py", "test_the_graph_follows_from_the_list_alone")
def neighbours_by_name():
    """Devices lie on the circle in the order of their names, which the server gives out."""
    from sottovoce.federation.masking import graph

    graph.sha256 = lambda text: type("", (), {"digest": lambda self: text[-8:]})()


@caught_by("unit/federation/masking/test_context.py", "test_a_round_is_named_by_its_federation_run_release_and_task")
def a_round_without_its_task():
    """Devices that were sent different models are in one round: the server tells them apart in the sum."""
    from dataclasses import replace

    from sottovoce.federation.masking import context

    real = context.context_of
    context.context_of = lambda task, task_digest: real(replace(task), "")


@caught_by("unit/federation/test_limits.py", "test_a_masked_vector_of_a_release_leaves_once_also_after_a_restart")
def a_vector_that_leaves_again_after_a_crash():
    """That a masked vector left is in memory alone."""
    from sottovoce.federation.limits import Participation

    def note(self, release, list_digest):
        self.refuse_masked(release)
        self._masked.add(release)

    Participation.note_masked = note


@caught_by(
    "unit/federation/test_device.py", "test_a_masked_round_goes_on_in_memory_and_after_a_crash_the_device_is_out_of_it"
)
def a_record_that_is_not_written_before_the_vector_leaves():
    """The device does not call the record at all."""
    from sottovoce.federation.masking.participant import Participant

    real = Participant._mask
    Participant._mask = lambda self, forwarded, before_vector: real(self, forwarded, lambda digest: None)


@caught_by("equivalence/test_device_neighbours.py", f"{OTHERS}[masked, min_separation, silo, removed]")
def a_silo_of_nobody_that_stays_away():
    """A device of which nobody joins takes no part: a masked sum opens or not because of one user of it."""
    from sottovoce.federation.device import Device
    from sottovoce.federation.messages import Code, Refused

    real = Device._sums

    def stay_away(self, task, assembly, params, rows, name):
        if not len(rows):
            raise Refused(Code.FAILED)
        return real(self, task, assembly, params, rows, name)

    Device._sums = stay_away


@caught_by("equivalence/test_device_neighbours.py", f"{OTHERS}[masked, min_separation, silo at its limit, removed]")
def a_limit_that_keeps_a_silo_away():
    """A device whose drawn users may not join refuses the round, as if it were not there."""
    from sottovoce.federation.limits import Participation
    from sottovoce.federation.messages import Code, Refused

    real = Participation.join

    def join(self, task, message, drawn, limits, allowed=None):
        rows = real(self, task, message, drawn, limits, allowed)
        if len(drawn) and not len(rows):
            raise Refused(Code.LIMITS)
        return rows

    Participation.join = join


@caught_by("unit/federation/test_device.py", "test_where_training_fails_zeros_are_sent")
def a_text_that_keeps_a_device_away():
    """A device whose training fails answers with an error: a masked sum of the others is then not opened."""
    from sottovoce.federation.device import Device

    real = Device._sums

    def train(self, task, assembly, params, rows, name):
        return (
            self._train(task, assembly, params, rows, name)
            if len(rows)
            else real(self, task, assembly, params, rows, name)
        )

    Device._sums = train


@caught_by(
    "unit/federation/aggregation/test_masked.py",
    "test_fewer_than_declared_are_not_unmasked_and_the_round_is_only_noise",
)
def a_sum_over_whoever_is_left():
    """The server goes on with fewer devices than are declared."""
    from sottovoce.federation.aggregation.masked import MaskedAggregator

    MaskedAggregator._too_few = lambda self, did, devices: not devices


@caught_by(
    "unit/federation/aggregation/test_masked.py",
    "test_the_sum_with_a_hostile_device_is_within_what_all_users_can_have",
)
def a_masked_sum_of_any_size():
    """The server takes what comes out, as if every device were honest."""
    from sottovoce.federation.aggregation.masked import MaskedAggregator

    MaskedAggregator._bounded = lambda self, found, grid: found


@caught_by("unit/federation/aggregation/test_masked.py", "test_a_wrong_share_of_a_mask_key_is_noticed")
def a_mask_key_that_is_not_compared():
    """What wrong shares give is taken for a mask key, and the sum is noise over the whole range."""
    from sottovoce.federation.aggregation import masked
    from sottovoce.federation.masking import masks

    masked._Opening._mask_key = lambda self, name: masks.key_from_seed(self._combined(name))


@caught_by(
    "unit/federation/aggregation/test_masked.py",
    "test_a_wrong_share_of_a_self_mask_is_noticed_and_nothing_is_unmasked",
)
def a_self_mask_that_is_not_compared():
    """What wrong shares give is taken for the seed of a self-mask, and the model steps by noise of the whole range."""
    from sottovoce.federation.aggregation import masked

    masked._Opening._is_self_seed = lambda self, name, seed: True


@caught_by(PARTICIPANT, f"{LIES}[a neighbour's commitment is another]")
def a_commitment_that_nobody_signed():
    """The commitment is beside what is signed: the server puts in its own, and takes wrong secrets for right."""
    from sottovoce.federation.masking import context, messages

    messages.Advert.claim = staticmethod(
        lambda round_context, name, entry: context.bind("k", round_context, name, entry[:64])
    )


@caught_by("unit/federation/masking/test_vector.py", "test_where_devices_add_the_noise_no_exact_count_is_in_the_vector")
def exact_counts_beside_noise():
    """How many users joined is sent exactly, next to sums with the noise of devices."""
    from sottovoce.federation.masking import vector

    real = vector.Layout
    vector.Layout = lambda shapes, bits, counts: real(shapes, bits, True)


# --- keys and members -----------------------------------------------------------------------------------------------


@caught_by(
    "unit/federation/test_members.py",
    "test_two_lists_have_the_same_fingerprint_only_if_all_of_it_is_the_same",
)
def a_fingerprint_of_names_alone():
    """Owners compare who is on the list, and not with which key: the server could have put in its own."""
    import hashlib

    from sottovoce.federation.members import Members

    Members.fingerprint = property(
        lambda self: "SHA256:" + hashlib.sha256(repr(sorted(self.devices)).encode()).hexdigest()
    )


@caught_by("unit/federation/test_roster.py", "test_a_device_that_made_its_key_gets_a_folder_without_one")
def a_key_of_the_server_in_place_of_the_devices_own():
    """The server makes a key for a device that has its own, and registers that."""
    from sottovoce.federation.roster import Roster

    real = Roster.enrol
    Roster.enrol = lambda self, name, users, limits, public_key=None: real(self, name, users, limits)


@caught_by("unit/federation/test_members.py", "test_a_list_that_is_missing_damaged_or_of_another_version_is_refused")
def two_devices_with_one_key():
    """One device signs for two, and counts twice among the survivors."""
    from sottovoce.federation import members

    members.len = lambda values: 0


@caught_by("test_adversaries.py", "test_a_masked_sum_without_noise_is_no_differential_privacy", EVIDENCE)
def an_epsilon_against_a_server_that_sees_sums_without_noise():
    """The ε of the released model is stated against everybody."""
    from sottovoce_evidence import adversaries

    real = adversaries.Adversary
    adversaries.Adversary = lambda who, sees, epsilon: real(who, sees, 1.5)


@caught_by(
    "test_adversaries.py",
    "test_keys_that_the_server_made_are_named_where_they_are_more_than_may_collude[3-True]",
    EVIDENCE,
)
def keys_of_the_server_that_nobody_mentions():
    """A masked run whose keys the server made looks like one whose devices made them."""
    from sottovoce_evidence.statement import FederationFacts

    FederationFacts.stand_ins = property(lambda self: 0)


# --- noise -----------------------------------------------------------------------------------------------------------


@caught_by("statistical/test_noise.py", "test_noise_through_the_whole_loop_has_the_declared_scale")
def half_the_noise():
    """Noise at half its scale."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.noise_std
    Mechanism.noise_std = lambda *args: (real(*args)[0] / 2, real(*args)[1])


@caught_by(
    "end_to_end/test_auditing_rounds.py",
    "test_a_sound_run_is_not_contradicted_and_nothing_but_the_audit_is_written",
)
def half_the_noise_under_audit():
    """Noise at half its scale, which an audit by rounds must not let pass."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.noise_std
    Mechanism.noise_std = lambda *args: (real(*args)[0] / 2, real(*args)[1])


@caught_by(
    "unit/audit/test_trade_off.py",
    "test_true_for_a_run_that_keeps_to_the_curve_with_probability_1_minus_confidence_at_most",
)
def a_curve_that_claims_too_much():
    """An audit of one run that tests a curve of half the ε, and so raises alarms about sound runs."""
    from sottovoce.audit.trade_off import TradeOff

    real = TradeOff.of
    TradeOff.of = staticmethod(lambda *args: TradeOff(tuple(e / 2 for e in real(*args).epsilons), real(*args).deltas))


@caught_by("unit/audit/test_trade_off.py", "test_the_curve_of_a_gaussian_is_hardly_below_its_trade_off_function")
def a_test_of_the_curve_that_forgets_one_direction():
    """An audit of one run that tests half of the curve, and so misses what a broken mechanism gives away."""
    from functools import cached_property

    from sottovoce.audit import trade_off

    def lines(self):
        offsets, slopes = real.func(self)
        return offsets[: len(offsets) // 2], slopes[: len(slopes) // 2]

    real = trade_off.TradeOff.__dict__["_lines"]
    trade_off.TradeOff._lines = cached_property(lines)
    trade_off.TradeOff._lines.__set_name__(trade_off.TradeOff, "_lines")


@caught_by("statistical/test_noise.py", "test_an_empty_cohort_gets_the_same_noise")
def no_noise_for_nobody():
    """No noise for an empty cohort."""
    import jax
    import numpy as np

    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.add_noise

    def add_noise(self, query, noise, *args):
        nobody = not any(np.any(leaf) for leaf in jax.tree.leaves(query.update))
        return (query, noise) if nobody else real(self, query, noise, *args)

    Mechanism.add_noise = add_noise


@caught_by("statistical/test_noise.py", "test_noise_never_repeats")
def one_stream_for_every_layer():
    """Every layer gets the same noise."""
    import jax

    from sottovoce.privacy import mechanism

    real = mechanism._noised
    mechanism._noised = lambda part, std, step, key, stream, use=lambda noised: noised: use(
        jax.tree.map(lambda leaf: real((leaf,), std, step, key, stream)[0], part)
    )


@caught_by("statistical/test_noise.py", "test_noise_never_repeats")
def one_key_for_every_round():
    """Every round draws the same noise."""
    from sottovoce.privacy import mechanism

    real = mechanism.rounded_gaussian
    mechanism.rounded_gaussian = lambda key, *rest: real(bytes(32), *rest)


@caught_by("statistical/test_noise.py", "test_every_bit_of_a_noise_key_counts")
def short_noise_keys():
    """A noise key of 64 bits."""
    from sottovoce.privacy import noise

    real = noise.rounded_gaussian
    noise.rounded_gaussian = lambda key, *rest: real(key[:8] + bytes(24), *rest)


@caught_by("statistical/test_release_bits.py", "test_no_statistic_tells_more_of_a_release_than_epsilon_allows")
def noise_in_floating_point():
    """Float32 noise, added in float64 and rounded to float32, as most libraries do."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from sottovoce.privacy import mechanism

    def with_noise(part, std, step, key, stream, use=lambda noised: noised):
        generator = np.random.default_rng([*key, stream])
        return use(
            jax.tree.map(
                lambda leaf: jnp.asarray(
                    np.float32(
                        leaf + np.float64(np.float32(std) * generator.standard_normal(np.shape(leaf), np.float32))
                    )
                ),
                part,
            )
        )

    mechanism._noised = with_noise


@caught_by("unit/privacy/test_mechanism.py", "test_what_followed_from_noise_that_was_not_settled_is_thrown_away")
def unsettled_noise_is_kept():
    """What a device made of the noise before the host knew that it is settled counts in any case."""
    from sottovoce.privacy import noise

    noise.with_the_rest = lambda drawn, draw, use: use(drawn.steps)


@caught_by("unit/privacy/test_mechanism.py", "test_what_is_released_is_a_function_of_a_sum_of_whole_numbers")
def a_step_of_the_data():
    """The grid follows the largest number of the estimate, which is private."""
    import jax
    import numpy as np

    from sottovoce.privacy import mechanism

    real = mechanism._noised

    def with_noise(part, std, step, *rest):
        largest = max(float(np.abs(leaf).max(initial=0)) for leaf in jax.tree.leaves(part))
        return real(part, std, largest * 2.0**-26 or step, *rest)

    mechanism._noised = with_noise


@caught_by("unit/privacy/test_mechanism.py", "test_what_is_released_is_a_function_of_a_sum_of_whole_numbers")
def rounding_that_is_not_paid_for():
    """An average is rounded to the grid, and the noise is as if it were not."""
    from sottovoce.privacy import mechanism

    real = mechanism._noised
    mechanism._noised = lambda part, std, *rest: real(part, std * (1 - 2.0**-19), *rest)


@caught_by("unit/privacy/test_noise.py", "test_decisions_that_are_close_are_left_to_more_bits")
def doubtful_roundings_are_taken():
    """A rounding that further bits could change is called settled."""
    import jax.numpy as jnp

    from sottovoce.privacy import noise

    real = noise._rounded
    noise._rounded = lambda *args: (real(*args)[0], jnp.full_like(real(*args)[1], True))


@caught_by("unit/privacy/test_rng.py", "test_chacha20_is_the_cipher_of_rfc_8439")
def chacha8():
    """A cipher of fewer rounds."""
    import randomgen

    real = randomgen.ChaCha
    randomgen.ChaCha = lambda key, rounds: real(key=key, rounds=8)


@caught_by("unit/privacy/test_mechanism.py", "test_noise_follows_the_clip_norm_at_constant_cost")
def noise_of_the_first_round():
    """Noise that does not follow the clip norm."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.noise_std
    Mechanism.noise_std = lambda self, number, clip_norms: real(self, 1, self.clip_norms(1, self.start()))


# --- correlated noise ------------------------------------------------------------------------------------------------

CORRELATED = "end_to_end/test_correlated_runs.py"
SAME_BITS = "test_killed_anywhere_and_resumed_a_run_ends_with_the_same_bits[blt]"
COVARIANCE = "test_noise_of_all_rounds_together_has_the_covariance_of_its_matrix"
MEANS = "test_what_one_user_moves_the_means_is_the_matrix_times_their_updates_up_to_the_declared_rounding"
WHOLE_RUN = "test_one_user_moves_all_rounds_of_a_run_together_by_at_most_its_sensitivity[blt-in_turn]"


def _at_every_resume(act: Callable[[], None]) -> None:
    from sottovoce.commands import train

    real = train.resume

    def resume(*args, **kwargs):
        act()
        return real(*args, **kwargs)

    train.resume = resume


@caught_by(CORRELATED, SAME_BITS)
def fresh_noise_after_resume():
    """A process that resumes a run draws noise of its own, also for rounds that were done before."""
    import os

    from sottovoce.runs.secrets import Secrets

    real, own = Secrets.noise_key, [b""]
    Secrets.noise_key = lambda self, number, release, digest: real(self, number, release, digest + own[0])
    _at_every_resume(lambda: own.__setitem__(0, os.urandom(8)))


@caught_by(CORRELATED, SAME_BITS)
def noise_that_forgets_at_resume():
    """The state of the noise is zero after a resume, as before the first round."""
    import numpy as np

    from sottovoce.training.server import ServerState

    real = ServerState.load
    ServerState.load = lambda self, number, arrays, noise: real(
        self, number, arrays, {name: np.zeros_like(values) for name, values in noise.items()}
    )


@caught_by(CORRELATED, SAME_BITS)
def decays_that_change_at_resume():
    """The buffers of a BLT decay in another way after a resume."""
    from dataclasses import replace

    from sottovoce.privacy.noise_stream import BltStream
    from sottovoce_evidence.accounting.matrices import Blt

    real, changed = BltStream.next, []

    def next_noise(self, *rest):
        other = Blt(self.matrix.scales, tuple(0.9 * decay for decay in self.matrix.decays))
        return real(replace(self, matrix=other) if changed else self, *rest)

    BltStream.next = next_noise
    _at_every_resume(lambda: changed.append(True))


@caught_by(CORRELATED, "test_the_state_of_the_noise_survives_in_float64_to_the_bit[blt]")
def noise_state_in_float32():
    """The state of the noise is kept in float32."""
    import numpy as np

    from sottovoce.runs.secrets import Secrets

    real = Secrets.save

    def save(self, folder, seal, noise=None):
        real(self, folder, seal, noise and {name: values.astype(np.float32) for name, values in noise.items()})

    Secrets.save = save


@caught_by("accounting/test_matrices.py", "test_the_sensitivity_is_that_of_the_worst_pattern", EVIDENCE)
def a_separation_of_one_round_more():
    """The sensitivity of a strategy matrix is for users who join one round less often."""
    from dataclasses import replace

    from sottovoce_evidence.accounting import matrices

    real = matrices.StrategyMatrix.sensitivity
    matrices.StrategyMatrix.sensitivity = lambda self, allowed: real(
        self, replace(allowed, min_separation=allowed.min_separation + 1)
    )


@caught_by("equivalence/test_correlated_neighbours.py", WHOLE_RUN)
def sensitivity_of_one_participation():
    """The noise of a run hides a user who joins once."""
    from sottovoce_evidence.accounting.matrices import Participation

    Participation.most = property(lambda self: 1)


@caught_by("statistical/test_correlated_noise.py", f"{COVARIANCE}[blt]")
def noise_without_the_sensitivity_of_the_run():
    """z is taken over what one user moves one round, not the run."""
    from sottovoce.privacy.mechanism import Mechanism

    Mechanism.run_sensitivity = 1.0


@caught_by("statistical/test_correlated_noise.py", f"{COVARIANCE}[blt]")
def the_multiplier_twice():
    """z is applied to the noise twice."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.noise_std
    Mechanism.noise_std = lambda self, *rest: (self.noise_multiplier * real(self, *rest)[0], None)


@caught_by("unit/privacy/test_noise_stream.py", MEANS)
def rounding_of_streams_that_is_not_paid_for():
    """Products in a stream are rounded, and the sensitivity is as if they were not."""
    from sottovoce.privacy.noise_stream import BltStream

    BltStream.rounding = 0.0


@caught_by("accounting/test_matrices.py", "test_coefficients_that_increase_or_are_negative_are_refused", EVIDENCE)
def coefficients_that_rise():
    """Coefficients of any shape are accepted, though the sensitivity is known for falling ones alone."""
    from sottovoce_evidence.accounting import matrices

    matrices._check_falling = lambda bands: None


@caught_by(
    "accounting/test_events.py",
    "test_a_run_of_correlated_noise_is_one_gaussian_for_one_user_added_or_removed",
    EVIDENCE,
)
def added_or_removed_shown_for_replaced():
    """The ε of one user replaced is that of one user added or removed."""
    from sottovoce_evidence import accounting
    from sottovoce_evidence.accounting.events import CorrelatedGaussian

    real = accounting.composition_of

    def composition_of(counts, accountant, replaced=False):
        return real(counts, accountant, replaced and not any(isinstance(event, CorrelatedGaussian) for event in counts))

    accounting.composition_of = composition_of


@caught_by(CORRELATED, "test_the_state_of_the_noise_lies_with_the_secrets_alone_and_is_erased_at_release[blt]")
def noise_state_in_the_checkpoint():
    """What the noise remembers lies in a file that others may read."""
    from dataclasses import replace

    from sottovoce.runs import checkpoint

    real = checkpoint.save_sealed

    def save_sealed(run, saved, secrets, noise=None):
        hidden = {f"noise {name}": values for name, values in (noise or {}).items()}
        return real(run, replace(saved, arrays={**saved.arrays, **hidden}), secrets, noise)

    checkpoint.save_sealed = save_sealed


@caught_by(CORRELATED, "test_another_sum_of_a_round_that_was_paid_for_is_refused[entropy]")
def another_sum_charged_again():
    """A round with another sum is charged once more and released, with the earlier noise that both share."""
    from sottovoce.privacy.mechanism import Mechanism
    from sottovoce.runs.payments import Payments

    real = Mechanism.event
    Mechanism.event = lambda self, number, again=False: real(self, 1 if again else number)
    Payments._repeatable = property(lambda self: True)


@caught_by(CORRELATED, "test_a_copy_of_a_run_that_went_on_elsewhere_is_refused[entropy]")
def a_copy_that_pays_again():
    """A copy of a run that went on elsewhere goes on for another charge."""
    from sottovoce.runs.payments import Payments

    def acquire(self, own, done):
        return self.lease.acquire(
            self.ledger.chain, lambda: self.store_ledger.charge(self.run, "a copy", own.charges.event(1), 1)
        )

    Payments._acquire = acquire


@caught_by(CORRELATED, "test_nothing_of_a_round_is_seen_before_its_checkpoint_is_on_disk")
def rounds_seen_before_their_checkpoint():
    """The record and the observer have a round as soon as it is played."""
    from sottovoce.commands.train import Training

    Training._repeatable = property(lambda self: True)


@caught_by(CORRELATED, "test_no_round_beyond_the_planned_ones_is_noised_or_charged")
def noise_beyond_the_planned_rounds():
    """A run may go on after the rounds that its sensitivity is for."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism._add_correlated
    Mechanism._add_correlated = lambda self, estimate, noise, number, *rest: real(
        self, estimate, noise, min(number, self.participation.rounds), *rest
    )


# --- sampling --------------------------------------------------------------------------------------------------------


@caught_by("statistical/test_sampling.py", "test_users_join_independently_of_one_another")
def poisson_that_is_fixed_size():
    """The same number of users every round."""
    from sottovoce.privacy.rng import philox
    from sottovoce.privacy.sampling import Poisson

    def sample(self, people, key, round_number=0):
        return philox(key).choice(len(people), size=round(self.user_rate * len(people)), replace=False)

    Poisson.sample = sample


@caught_by("statistical/test_sampling.py", "test_a_user_added_at_the_end_changes_nobody_elses_coin")
def coins_that_know_the_population():
    """A coin that depends on who else is there."""
    from sottovoce.privacy.sampling import Poisson

    real = Poisson.sample
    Poisson.sample = lambda self, people, key, number=0: real(self, people, bytes([len(people) % 256]) + key[1:])


@caught_by("statistical/test_sampling.py", "test_users_join_rounds_as_often_as_the_ledger_is_charged_for")
def drawn_twice():
    """Whoever is in either of two draws joins a round, which is charged for one."""
    import numpy as np

    from sottovoce.training import round as module

    real = module.play_round

    def play_round(algorithm, state, store, payment, sum_updates, observe=None):
        sampler = algorithm.mechanism.sampler

        def both(algorithm, task, store):
            more = sampler.sample(store, payment.keys.local)
            return sum_updates(algorithm, task._replace(cohort=np.union1d(task.cohort, more)), store)

        return real(algorithm, state, store, payment, both, observe)

    module.play_round = play_round


@caught_by("unit/privacy/test_sampling.py", "test_nobody_joins_more_often_than_is_charged")
def a_turn_begun_is_not_counted():
    """Users in turn are charged when everybody has joined, not when somebody joins once more."""
    from sottovoce.privacy.sampling import InTurn

    InTurn.participations = lambda self, rounds: rounds // self.groups


@caught_by("equivalence/test_neighbouring_people.py", "test_in_turn_one_person_moves_their_own_rounds_alone")
def turns_by_the_row():
    """Whose turn it is follows from the place in the store, which shifts with whoever joins or leaves."""
    import numpy as np

    from sottovoce.privacy.sampling import InTurn

    InTurn.sample = lambda self, people, key, number: np.flatnonzero(
        self.group_of(np.arange(len(people))) == number % self.groups
    )


@caught_by("unit/privacy/test_sampling.py", "test_nobody_joins_more_often_than_is_charged")
def groups_counted_in_the_store():
    """A store of fewer people than declared has its turns more often."""
    import numpy as np

    from sottovoce.privacy.sampling import InTurn

    def sample(self, people, key, number):
        groups = max(1, len(people) // self.cohort)
        return np.flatnonzero(self.group_of(people.names) % np.uint64(groups) == number % groups)

    InTurn.sample = sample


_SEPARATION = "test_nobody_joins_within_the_separation_or_more_often_than_allowed"


@caught_by("unit/privacy/test_sampling.py", _SEPARATION)
def a_separation_of_one_round_less():
    """Users come back one round too early."""
    from dataclasses import replace

    from sottovoce.privacy.sampling import MinSeparation

    real = MinSeparation.rounds_of

    def rounds_of(self, names, rounds):
        return real(replace(self, min_separation=max(self.min_separation - 1, 1)), names, rounds)

    MinSeparation.rounds_of = rounds_of


@caught_by("unit/privacy/test_sampling.py", _SEPARATION)
def participations_not_enforced():
    """After the last of the rounds that a user may join, it begins again with the first."""
    from sottovoce.privacy.sampling import MinSeparation

    real = MinSeparation.sample
    MinSeparation.sample = lambda self, people, key, number=0: real(self, people, key, (number - 1) % self.span + 1)


@caught_by("equivalence/test_neighbouring_people.py", "test_in_turn_one_person_moves_their_own_rounds_alone")
def rounds_by_the_row():
    """When a user joins follows from the place in the store, not from the name."""
    import numpy as np

    from sottovoce.privacy.sampling import MinSeparation

    class Rows:
        def __init__(self, people):
            self.names = np.arange(len(people), dtype=np.uint64)

    real = MinSeparation.sample
    MinSeparation.sample = lambda self, people, key, number=0: real(self, Rows(people), key, number)


@caught_by("unit/privacy/test_sampling.py", "test_the_rounds_of_a_ledger_add_up_to_the_most_turns_of_anybody")
def separated_users_charged_once():
    """Users who join at irregular times are charged for one round, however many they join."""
    from sottovoce.privacy.sampling import MinSeparation

    MinSeparation.participations = lambda self, rounds: 1


@caught_by("unit/privacy/test_mechanism.py", "test_the_sampler_chooses_what_is_charged")
def fixed_size_charged_as_poisson():
    """Fixed-size cohorts charged as Poisson."""
    from sottovoce.privacy.sampling import FixedSize
    from sottovoce_evidence.accounting import SampledGaussian

    FixedSize.event = lambda self, z: SampledGaussian(z, "poisson", self.user_rate)


@caught_by(
    "statistical/test_sampling.py",
    "test_where_users_are_missing_places_are_empty_and_nobody_joins_more_often_than_is_charged",
)
def no_empty_places():
    """A fixed number is drawn from those who are there, fewer than declared, and charged as if from all declared."""
    from sottovoce.privacy.rng import philox
    from sottovoce.privacy.sampling import FixedSize

    def sample(self, people, key, round_number=0):
        return philox(key).choice(len(people), size=min(self.cohort, len(people)), replace=False)

    FixedSize.sample = sample


# --- clipping and weights --------------------------------------------------------------------------------------------


@caught_by("unit/kernels/test_any_users.py", "test_rows_that_are_read_are_all_that_changes")
def rows_that_no_clip_reaches():
    """The clip of a step leaves the rows of a table that were not read as they are."""
    from sottovoce.kernels.any_users import Sparse

    Sparse.clip = lambda self, factor: self


@caught_by("unit/local/test_update.py", "test_no_update_is_longer_than_the_clip_norm")
def clip_before_the_last_step():
    """The clip comes before the last step."""
    import jax
    import jax.numpy as jnp

    from sottovoce.local import update as module

    def clip_update(local, trained, clip_norms):
        update, clipped = local.clipping.clip(trained.update, clip_norms)
        update = jax.tree.map(lambda leaf: leaf + 0.1 * jnp.sign(leaf), update)  # what the last step adds
        update, sound = module.finite_or_zero(update)
        return module.UserResult(update, sound, trained.norm, trained.clipped | clipped, trained.loss)

    module.clip_update = clip_update


@caught_by("unit/local/test_update.py", "test_no_update_is_longer_than_the_clip_norm")
def whole_norm_for_every_layer():
    """Every layer may be as long as the whole."""
    from sottovoce.privacy.clipping import PerLayerClip

    PerLayerClip.even = staticmethod(lambda norm, layers, weighted=False: PerLayerClip((norm,) * layers, weighted))


@caught_by("unit/privacy/test_clipping.py", "test_a_layer_of_several_arrays_is_clipped_as_one")
def half_of_an_adapter_clipped():
    """Of the two arrays of an adapter, the first alone is clipped."""
    from sottovoce.privacy.clipping import PerLayerClip, project

    def shorten(self, part, bound):
        first, cut = project(part[:1], bound)
        return [*first, *part[1:]], cut

    PerLayerClip.shorten = shorten


@caught_by("unit/privacy/test_clipping.py", "test_a_clipped_update_is_never_longer_than_the_clip_norm")
def no_room_for_rounding():
    """Rounding lets an update through."""
    from sottovoce.privacy import clipping

    clipping.SAFE_SHARE = 1 + 1e-6


@caught_by("unit/privacy/test_fixed_point.py", "test_a_gpu_that_adds_both_halves_at_once_has_the_same_sum")
def halves_that_are_mixed_up_on_a_gpu():
    """A GPU's sums of the upper and of the lower halves change places."""
    import jax

    from sottovoce.privacy import fixed_point

    real = fixed_point._sum_of_halves

    def mixed_up(steps):
        return real(steps) if jax.default_backend() == "cpu" else real(steps)[::-1]

    fixed_point._sum_of_halves = mixed_up


@caught_by(
    "unit/privacy/test_clipping.py",
    "test_what_a_clip_makes_not_finite_is_zero_and_what_was_not_finite_before_it_has_no_weight[nan]",
)
def nan_of_a_clip_is_summed():
    """A number that a clip made not finite goes on."""
    import jax
    import jax.numpy as jnp

    from sottovoce.privacy import clipping

    def finite_or_zero(update, length=None):
        sound = jnp.isfinite(clipping.norm(update) if length is None else length)
        return jax.tree.map(lambda leaf: jnp.where(sound, leaf, 0), update), sound.astype(jnp.float32)

    clipping.finite_or_zero = finite_or_zero


@caught_by("unit/privacy/test_fixed_point.py", "test_one_contribution_moves_a_sum_by_no_more_than_itself")
def steps_cut_downwards():
    """Contributions are cut to the grid downwards, not towards zero: negative ones become longer."""
    from sottovoce.privacy import fixed_point

    real = fixed_point._within
    fixed_point._within = lambda numpy, steps: numpy.floor(real(numpy, steps))


@caught_by("unit/local/test_update.py", "test_a_user_whose_update_is_not_finite_contributes_zero_and_no_weight")
def nan_is_summed():
    """Updates that are not finite are summed."""
    import jax.numpy as jnp

    from sottovoce.local import update

    update.finite_or_zero = lambda tree, length: (tree, jnp.ones(()))


@caught_by(
    "equivalence/test_neighbours.py",
    "test_one_user_moves_a_round_by_at_most_the_sensitivity[fedavg, every step-flat-10.0]",
)
def weights_above_one():
    """Weights above one."""
    from sottovoce.training import cohort_sum

    cohort_sum.user_weight = lambda tokens, weight_cap: tokens / weight_cap


@caught_by("unit/privacy/test_fixed_point.py", "test_a_user_cannot_move_a_sum_by_the_rounding_of_others")
def sums_in_floating_point():
    """Updates are added in float32, and rounded on the way."""
    from sottovoce.privacy.mechanism import Mechanism

    Mechanism.grid = lambda self, clip_norms: None


@caught_by("unit/privacy/test_mechanism.py", "test_what_is_released_is_a_function_of_a_sum_of_whole_numbers")
def rounded_before_the_noise():
    """The estimate is rounded to float32 before it is noised."""
    import jax
    import numpy as np

    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.estimate
    Mechanism.estimate = lambda self, *sums: jax.tree.map(np.float32, real(self, *sums))


# --- estimators ------------------------------------------------------------------------------------------------------


@caught_by("unit/build/test_assembly.py", DECLARED)
def chance_of_the_store():
    """q is the cohort over the number of users in the store."""
    from sottovoce.build import assembly

    real = assembly.assemble

    def assemble(recipe, store, **more):
        return real(recipe.replace(privacy={"users": store.users}), store, **more)

    assembly.assemble = assemble


@caught_by("unit/build/test_assembly.py", DECLARED)
def denominator_of_the_store():
    """W is the number of users in the store; q is the declared one."""
    from sottovoce.build import assembly
    from sottovoce.privacy.estimators import ESTIMATORS, FixedDenominator

    real = assembly.assemble

    def assemble(recipe, store, **more):
        rate = recipe.privacy.cohort / recipe.privacy.users
        ESTIMATORS.build = lambda name, **weights: FixedDenominator(rate * store.users)
        return real(recipe, store, **more)

    assembly.assemble = assemble


@caught_by("unit/privacy/test_estimators.py", "test_the_fixed_denominator_does_not_look_at_the_cohort")
def denominator_of_the_cohort():
    """The realised cohort as denominator."""
    import jax
    import jax.numpy as jnp

    from sottovoce.privacy.estimators import FixedDenominator

    FixedDenominator.estimate = lambda self, total, weight: jax.tree.map(
        lambda leaf: leaf / jnp.maximum(weight, 1), total
    )


@caught_by("unit/privacy/test_estimators.py", "test_the_sensitivity_of_the_clipped_denominator_is_attained")
def clipped_denominator_like_the_fixed_one():
    """Half the sensitivity of the clipped denominator."""
    from sottovoce.privacy.estimators import ClippedDenominator

    ClippedDenominator.sensitivity = lambda self, norm_bound: norm_bound / (1 + self.least_weight)


@caught_by("unit/privacy/test_mechanism.py", "test_weight_aware_clipping_is_refused_with_the_clipped_denominator")
def lemma_as_printed():
    """Weight-aware clipping with the clipped denominator."""
    from sottovoce.privacy.estimators import ClippedDenominator

    ClippedDenominator.takes_weighted_clip = True


# --- adaptive clipping and schedules ---------------------------------------------------------------------------------


@caught_by("unit/privacy/test_adaptive.py", "test_update_and_bits_together_are_charged_z")
def free_bits():
    """The adaptive bit is not paid for."""
    from sottovoce_evidence.adaptive import QuantileTracking

    QuantileTracking.update_multiplier = lambda self, z, parts: z


@caught_by("unit/privacy/test_adaptive.py", "test_update_and_bits_together_are_charged_z")
def one_bit_of_many():
    """One bit paid for, of many."""
    from sottovoce_evidence.adaptive import QuantileTracking

    real = QuantileTracking.update_multiplier
    QuantileTracking.update_multiplier = lambda self, z, parts: real(self, z, 1)


@caught_by("unit/privacy/test_adaptive.py", "test_update_and_bits_together_are_charged_z")
def split_multiplier_charged():
    """What is left for the update is charged."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.event
    Mechanism.event = lambda self, *args: dataclasses.replace(
        real(self, *args), noise_multiplier=self._update_multiplier(self.noise_multiplier)
    )


@caught_by("unit/privacy/test_adaptive.py", "test_the_clip_norm_moves_towards_the_quantile")
def wrong_sign():
    """The clip norm runs away from the quantile."""
    from sottovoce_evidence.adaptive import QuantileTracking

    real = QuantileTracking.next_clip_norms
    QuantileTracking.next_clip_norms = lambda self, norms, bits: real(self, norms, -bits)


@caught_by(
    "equivalence/test_neighbours.py",
    "test_one_user_moves_a_round_by_at_most_the_sensitivity[fedavg, every step-flat-10.0]",
)
def bits_not_centred():
    """Bits that are not centred."""
    from sottovoce.training.cohort_sum import SumInBlocks

    real = SumInBlocks.__call__

    def call(self, *args):
        summed = real(self, *args)
        return summed._replace(bits=2 * summed.bits)

    SumInBlocks.__call__ = call


@caught_by("unit/training/test_round.py", FOLLOWS)
def exact_bits_followed():
    """The next clip norm follows the exact bits, and is then shown."""
    from sottovoce.privacy.mechanism import Mechanism

    asked = []
    query, follow = Mechanism.estimate, Mechanism.next_clip_norms

    def remembered(self, *sums):
        asked.append(query(self, *sums))
        return asked[-1]

    Mechanism.estimate = remembered
    Mechanism.next_clip_norms = lambda self, tracked, noised: follow(self, tracked, asked[-1])


@caught_by("unit/training/test_round.py", FOLLOWS)
def users_clip_to_the_first_norm():
    """Users clip to the norm of round 1, while the noise is that of the present one."""
    from sottovoce.training.cohort_sum import SumInBlocks

    real, first = SumInBlocks.__call__, []

    def call(self, algorithm, task, store):
        first.append(task.clip_norms)
        return real(self, algorithm, task._replace(clip_norms=first[0]), store)

    SumInBlocks.__call__ = call


@caught_by("unit/privacy/test_mechanism.py", "test_a_noise_that_changes_is_charged_round_by_round")
def first_noise_charged():
    """A changing noise charged as its first."""
    from sottovoce.privacy.mechanism import Mechanism

    Mechanism.events = lambda self, rounds: [(self.event(1), rounds)]


# --- ledger, resume, secrets -----------------------------------------------------------------------------------------


@caught_by("equivalence/test_neighbours.py", "test_nothing_else_of_a_round_depends_on_a_user")
def paid_for_afterwards():
    """Noise is drawn before it is paid for."""
    from sottovoce.privacy.mechanism import Mechanism

    real_query, real_add_noise = Mechanism.estimate, Mechanism.add_noise

    def query(self, *sums):
        asked = real_query(self, *sums)
        real_add_noise(self, asked, (), 1, self.clip_norms(1, self.start()), bytes(32))
        return asked

    Mechanism.estimate = query


SUMS = "end_to_end/test_sums_and_noise.py"


@caught_by(SUMS, "test_copies_of_store_and_run_whose_sums_differ_share_no_noise")
def one_noise_for_two_sums():
    """The noise follows from the name of a release, not from its sum."""
    from sottovoce.runs.secrets import Secrets

    real = Secrets.noise_key
    Secrets.noise_key = lambda self, round_number, release, digest: real(self, round_number, release, b"")


@caught_by(
    "unit/runs/test_payments.py",
    "test_a_round_done_again_with_another_sum_is_paid_again_with_a_cohort_and_noise_of_its_own",
)
def another_sum_for_free():
    """A round whose sum is another counts as the same release: paid for once, released twice."""
    from sottovoce.runs.secrets import Secrets

    real = Secrets.tag
    Secrets.tag = lambda self, release, digest: real(self, release, b"")


@caught_by(SUMS, "test_the_hash_of_a_sum_is_nowhere")
def the_hash_of_a_sum_in_the_ledger():
    """Whoever guesses a sum can confirm it by the public ledger, and take the noise off."""
    from sottovoce.runs.ledger import Entry
    from sottovoce.runs.secrets import Secrets

    real_tag, real_json, plain = Secrets.tag, Entry.to_json, []

    def tag(self, release, digest):
        plain.append(digest.hex())
        return real_tag(self, release, digest)

    Secrets.tag = tag
    Entry.to_json = lambda self: {**real_json(self), "sum": plain[-1]}


@caught_by(SUMS, "test_the_hash_of_a_sum_is_nowhere")
def the_hash_of_a_sum_kept_in_the_clear():
    """What recognises a sum is its plain hash."""
    from sottovoce.runs.secrets import Secrets

    Secrets.tag = lambda self, release, digest: digest.hex()


@caught_by("unit/runs/test_secrets.py", "test_a_noise_key_is_of_one_round_one_release_and_one_sum")
def noise_key_reused_after_resume():
    """A round done again with the noise it had."""
    from sottovoce.runs.secrets import Secrets

    real = Secrets.noise_key
    Secrets.noise_key = lambda self, round_number, release, digest: real(self, round_number, "", digest)


@caught_by("unit/runs/test_secrets.py", "test_every_round_attempt_and_use_has_a_key_of_its_own")
def cohort_drawn_again_after_resume():
    """A round done again with the cohort it had: two releases of one cohort cost more than two."""
    from sottovoce.runs.secrets import Secrets

    real = Secrets.keys
    Secrets.keys = lambda self, round_number, release: real(self, round_number, "")


@caught_by("end_to_end/test_origins.py", "test_an_edited_checkpoint_is_refused")
def any_checkpoint_will_do():
    """A run goes on from a checkpoint that it did not make."""
    from sottovoce.runs import checkpoint

    checkpoint.check_origin = lambda run, ledger, saved: None


@caught_by("unit/runs/test_hash_chain.py", "test_a_last_line_without_its_newline_counts[store]")
def a_newline_makes_a_charge():
    """A last line that lacks its newline counts as torn, whole as it is."""
    from sottovoce.runs.hash_chain import Chain

    Chain._is_whole = lambda self, last: False


@caught_by("unit/runs/test_hash_chain.py", "test_no_accident_lowers_what_was_spent_unseen[store-moves]")
def checksums_nobody_looks_at():
    """Lines are written with checksums, and read without."""
    from sottovoce.runs import hash_chain

    real = hash_chain.Chain._take

    def take(self, raw):
        found = hash_chain._CHECKED.fullmatch(raw)
        return real(self, found[1] + b"}" if found else raw)

    hash_chain.Chain._take, hash_chain._read_head = take, lambda path: ""


@caught_by("unit/runs/test_payments.py", "test_a_round_broken_off_elsewhere_or_never_the_same_is_paid_for_twice")
def second_attempt_for_free():
    """A round done again is not paid for again."""
    from sottovoce.runs.ledger import Ledger

    real = Ledger.spend
    Ledger.spend = lambda self, entry: None if entry.attempt else real(self, entry)


@caught_by("unit/runs/test_ledger.py", "test_what_is_spent_is_on_disk_before_spend_returns")
def ledger_not_flushed():
    """The ledger is written after a while."""
    from sottovoce.runs import hash_chain

    def append(path, contents, *, private=False):
        with open(path, "ab") as file:
            file.write(contents)

    hash_chain.append_synced = append


@caught_by("end_to_end/test_power_cuts.py", "test_a_store_with_the_words_that_were_paid_for_is_whole")
def names_before_contents():
    """A folder gets its name before the files in it are on disk."""
    from sottovoce import files

    files._sync_file = lambda path: None


@caught_by("end_to_end/test_power_cuts.py", "test_wherever_the_power_fails_a_run_that_was_charged_is_there_and_goes_on")
def a_charge_before_the_name():
    """People pay for a run whose folder has no name yet: a power cut, or another run of that name, and it never was."""
    from sottovoce.commands import new_run

    named = "            Lease(draft.secrets, store_folder(store)).announce()\n"
    write_otherwise(new_run, "begin", named, named + "            _pay(draft, store, assembly, '')\n")


@caught_by("unit/commands/test_new_run.py", "test_two_runs_of_one_name_charge_once")
def a_name_that_is_free_to_the_end():
    """Two processes fill a folder of the same name, and the later one has paid for nothing."""
    from contextlib import nullcontext

    from sottovoce import files

    files._taken = lambda out, mode: nullcontext()


@caught_by("unit/commands/test_new_run.py", "test_a_copy_of_a_run_that_nobody_paid_for_yet_is_no_second_run")
def a_copy_that_begins_too():
    """Two copies of a run that was not charged yet are both taken for the one that begins."""
    from pathlib import Path

    from sottovoce.runs.lease import Lease

    Lease._at_store = property(lambda self: self.folder / "nowhere" if self.name else Path())


@caught_by("unit/commands/test_private_evaluation.py", "test_a_full_disk_costs_nothing_or_the_answer_is_kept")
def an_answer_without_room():
    """Held-out users pay for an answer, and then there is no room on the disk to keep it."""
    from sottovoce.commands import paid_answer

    paid_answer.ROOM = 0


@caught_by("unit/runs/test_secrets.py", "test_fresh_secrets_differ_and_owe_nothing_to_the_seed")
def secrets_from_the_seed():
    """Secrets from the seed of the experiment."""
    from sottovoce.runs.secrets import Secrets

    Secrets.fresh = staticmethod(lambda: Secrets.seeded(0))


@caught_by("unit/runs/test_payments.py", "test_training_stops_before_the_budget_and_before_a_cohort_is_drawn")
def hard_stop_one_round_late():
    """One round beyond the budget."""
    from sottovoce.runs.budget import Budget

    real = Budget.rounds_allowed
    Budget.rounds_allowed = lambda self, *rest: real(self, *rest) + 1
    Budget.allows = lambda self, charged: self.spent(charged[:-1]) <= self.limit


@caught_by("end_to_end/test_paying.py", "test_text_that_was_changed_in_place_is_not_released_under_the_noise_of_before")
def store_known_by_its_place():
    """The noise of a round does not follow what people wrote."""
    from sottovoce.data.store import Store

    Store.fingerprint = property(lambda self: str(self.path))


@caught_by("unit/runs/test_payments.py", "test_a_copy_of_a_run_in_flight_that_goes_on_is_charged_again")
def held_once_for_all():
    """A folder that acquired the lease holds it from then on: a copy made in flight has the same token."""
    from sottovoce.runs.lease import Lease

    Lease.renew = lambda self, ledger: True


@caught_by("unit/runs/test_payments.py", "test_a_run_that_its_store_was_not_charged_for_is_refused")
def lost_charges_forgiven():
    """A run goes on though its store no longer knows that it was charged."""
    from sottovoce.runs.payments import Payments

    Payments._charge_missing = lambda self: []


@caught_by("unit/runs/test_payments.py", "test_a_charge_is_on_disk_before_the_noise_key_is_given")
def noise_before_the_charge():
    """The key of the noise is given, and the charge is left for later."""
    from sottovoce.runs.ledger import Ledger

    Ledger.spend = lambda self, entry: None


@caught_by("end_to_end/test_paying.py", "test_the_public_record_holds_nothing_exact_about_the_cohort")
def cohort_size_in_the_record():
    """The size of the cohort in the public record."""
    from sottovoce.runs.record import Lines

    real = Lines.append
    Lines.append = lambda self, entry: real(self, {"users": 7, **entry})


# --- tokens ----------------------------------------------------------------------------------------------------------


@caught_by("unit/commands/test_tokenizer.py", "test_text_of_people_is_refused")
def tokenizer_of_people():
    """A tokenizer learns from people's text, and its pieces are a release that nobody charged."""
    from pathlib import Path

    from sottovoce.commands import tokenizer

    tokenizer._public_files = lambda text: [Path(path) for path in text]


# --- accounting ------------------------------------------------------------------------------------------------------


@caught_by("accounting/test_pld.py", "test_many_rounds_of_fixed_size_lie_between_what_is_attained_and_renyi", EVIDENCE)
def replacement_not_doubled():
    """Replacing a user charged as adding one."""
    from sottovoce_evidence.accounting import composition

    real = composition._kinds

    def kinds(made):
        doubled = lambda event: dataclasses.replace(event, noise_multiplier=2 * event.noise_multiplier)  # noqa: E731
        rounds = {doubled(event) if event.sampling == "fixed" else event: n for event, n in made.rounds.items()}
        return real(dataclasses.replace(made, rounds=rounds))

    composition._kinds = kinds


@caught_by(
    "accounting/test_epsilon.py", "test_a_poisson_round_beside_fixed_ones_is_charged_for_replacing_a_user", EVIDENCE
)
def poisson_rounds_keep_their_relation():
    """Poisson rounds beside cohorts of fixed size charged for removing a user, in a total for replacing one."""
    from sottovoce_evidence.accounting import pld

    pld.REPLACED = pld.REMOVED


@caught_by(
    "accounting/test_composition.py", "test_a_histogram_is_a_gaussian_over_everyone_and_a_share_of_delta", EVIDENCE
)
def threshold_for_free():
    """The chance that a threshold fails is not taken from δ."""
    from sottovoce_evidence.accounting import events

    events.ThresholdedHistogram.__getattribute__ = lambda self, name: (
        1e-30 if name == "delta" else object.__getattribute__(self, name)
    )


@caught_by("unit/data/test_prepare.py", "test_a_person_who_leaves_with_all_their_records_changes_nobody_elses_text")
def a_shared_record_counts_for_its_first_owner():
    """A record of two people is in the text of one: without the other, it would not be there."""
    from sottovoce.data.blocks import OwnedTexts

    real = OwnedTexts.of
    OwnedTexts.of = staticmethod(lambda found, most: real(((owners[:1], text) for owners, text in found), most))


@caught_by("unit/data/test_prepare.py", "test_nearly_as_many_users_as_records_must_be_meant")
def messages_are_taken_for_people():
    """A store of message ids, where no person is protected, is made without a question."""
    from sottovoce.data.grouping import Grouping

    Grouping.check_users = lambda self, users, single: None


@caught_by("unit/data/test_private_vocabulary.py", "test_one_user_more_changes_few_counts_by_one")
def as_many_words_as_one_likes():
    """A user's share in a private vocabulary is not bounded."""
    from sottovoce.data import private_vocabulary

    real = private_vocabulary._words_of
    private_vocabulary._words_of = lambda name, tokens, limit: real(name, tokens, 10**9)


@caught_by("statistical/test_thresholds.py", "test_the_noise_of_a_histogram_has_the_declared_scale")
def half_the_noise_of_a_histogram():
    """Counts of words with half their noise."""
    from sottovoce.privacy.histogram import NoisyHistogram

    real = NoisyHistogram.noise_std.fget
    NoisyHistogram.noise_std = property(lambda self: real(self) / 2)


@caught_by("unit/runs/test_ledger.py", "test_an_unknown_event_is_refused_not_ignored")
def unknown_events_skipped():
    """An unknown event is skipped."""
    from sottovoce.runs import ledger
    from sottovoce_evidence.errors import SottoError

    real = ledger.event_from_json

    def lenient(data):
        try:
            return real(data)
        except SottoError:
            return real({"kind": "sampled-gaussian", "noise_multiplier": 9.0, "sampling": "poisson", "user_rate": 0.1})

    ledger.event_from_json = lenient


# --- several processes -----------------------------------------------------------------------------------------------

SHARED = "unit/multiprocess/test_cohort_sum.py"


@caught_by(SHARED, "test_rounds_of_two_processes_have_the_cohorts_the_noise_and_the_model_of_one")
def every_process_adds_noise():
    """Each process noises its own sum: more noise than was declared, or less where each takes its part of it."""
    import jax
    import numpy as np

    from sottovoce.multiprocess import cohort_sum

    real = cohort_sum._add_trees
    generator = np.random.default_rng(0)

    def noised(group, tree):
        def add(leaf):
            return leaf + generator.integers(-9, 9, leaf.shape).astype(leaf.dtype) if leaf.ndim > 1 else leaf

        return real(group, jax.tree.map(add, tree))

    cohort_sum._add_trees = noised


@caught_by(SHARED, "test_any_number_of_processes_give_the_sum_of_one_to_the_bit[many-2]")
def cohorts_of_ones_own():
    """Helpers train users whom process 0 did not draw."""
    from sottovoce.multiprocess import cohort_sum

    real = cohort_sum._from_bytes

    def other(message, like):
        task = real(message, like)
        return task._replace(cohort=(task.cohort + 1) % 13)

    cohort_sum._from_bytes = other


SEATS = "equivalence/test_seats.py"


@caught_by("unit/training/test_cohort_sum.py", "test_all_cohorts_share_one_program_whose_shapes_are_public")
def a_block_as_large_as_its_cohort():
    """One user more compiles another program for all others."""
    from sottovoce.training.cohort_sum import SumInBlocks

    real = SumInBlocks.__call__

    def call(self, algorithm, task, store):
        seats = max(1, min(self.block, len(task.cohort)))
        return real(dataclasses.replace(self, block=seats), algorithm, task, store)

    SumInBlocks.__call__ = call


@caught_by("unit/local/test_update.py", "test_steps_of_others_do_not_clip_an_update_once_more[per layer]")
def a_second_clip_in_the_steps_of_others():
    """Steps that a block takes for its longest text clip the others again."""
    from sottovoce.local import update

    write_otherwise(update, "FedAvg", "jnp.where(counts, new, old)", "new")


@caught_by(SEATS, "test_one_user_more_moves_the_sum_by_their_own_update_to_the_bit")
def an_update_that_follows_how_many_there_are():
    """The first token of everybody follows from the number of users in the block."""
    from sottovoce.training import cohort_sum

    real = cohort_sum._seated

    def seated(sums, update, task, store, places):
        found = real(sums, update, task, store, places)
        users = found.users._replace(tokens=found.users.tokens.at[:, :, 0].set(4 + len(places) % 2))
        return found._replace(users=users)

    cohort_sum._seated = seated


@caught_by(SEATS, "test_it_is_refused_where_users_are_computed_at_once")
def a_device_that_nobody_tried():
    from sottovoce.training import seats

    seats.check_seats = lambda *given: None


@caught_by("unit/multiprocess/test_group.py", "test_what_differs_is_named")
def machines_that_compute_otherwise():
    """Who else is in a round decides which machine computes a user."""
    from sottovoce.multiprocess import group

    del group._MUST_MATCH["update"]


@caught_by(SHARED, "test_any_number_of_processes_give_the_sum_of_one_to_the_bit[many-2]")
def users_counted_by_every_process():
    """Every process sums the whole cohort: a user counts as often as there are processes."""
    from sottovoce.multiprocess import cohort_sum

    real = cohort_sum._sum_together

    class Alone:
        """A group that looks like one process to whoever shares out blocks."""

        def __init__(self, group):
            self.group, self.rank, self.count = group, 0, 1

        def __getattr__(self, name):
            return getattr(self.group, name)

    cohort_sum._sum_together = lambda group, *given: real(Alone(group), *given)


@caught_by(SHARED, "test_the_keys_of_sampling_and_noise_stay_with_process_0")
def noise_key_told_to_helpers():
    """The users' own randomness is keyed with the key of the noise, which so leaves process 0."""
    from sottovoce.runs.secrets import Secrets

    Secrets.noise_key = lambda self, round_number, release, digest: self.keys(round_number).local


RENDEZVOUS = "unit/multiprocess/test_rendezvous.py"


@caught_by(RENDEZVOUS, "test_strangers_at_the_port_are_named_and_process_0_goes_on_waiting[who guesses]")
def strangers_let_in():
    """A process is let in whatever it shows of the secret."""
    import hmac
    from types import SimpleNamespace

    from sottovoce.multiprocess import rendezvous

    rendezvous.hmac = SimpleNamespace(digest=hmac.digest, compare_digest=lambda one, other: True)


@caught_by("unit/multiprocess/test_group.py", "test_a_process_without_the_secret_is_found_before_anything_is_sent")
def members_that_jax_let_in():
    """Whoever JAX counts among the processes is told the model and who is drawn."""
    from sottovoce.multiprocess.group import Group

    Group.check_members = lambda self, secret: None


LINKS = "unit/multiprocess/test_links.py"


@caught_by(LINKS, "test_an_end_with_another_certificate_is_sent_nothing")
def any_certificate_is_taken():
    """Whoever speaks TLS between two processes reads the sums."""
    import hmac
    from types import SimpleNamespace

    from sottovoce.multiprocess import links

    links.hmac = SimpleNamespace(digest=hmac.digest, compare_digest=lambda one, other: True)


@caught_by(LINKS, "test_who_does_not_know_the_secret_is_not_counted[for another certificate]")
def proofs_that_are_good_for_any_run():
    """A process that proved the secret to another leader is let in."""
    from sottovoce.multiprocess import links

    real = links._proof
    links._proof = lambda secret, certificate, rank: real(secret, "", rank)


@caught_by(SHARED, "test_how_many_processes_share_the_users_is_in_the_fingerprint")
def layout_not_in_the_fingerprint():
    """A round done again by other processes counts as the same release."""
    from sottovoce.build import assembly

    real = assembly.fingerprint
    assembly.fingerprint = lambda recipe, store, layout: real(recipe, store, "")


@caught_by("unit/multiprocess/test_cohort_sum.py", "test_process_0_sends_the_frozen_part_once")
def helpers_with_frozen_weights_of_their_own():
    """The other processes train beside the weights that they built, not those that the run starts from."""
    from sottovoce.multiprocess import cohort_sum

    cohort_sum._frozen_from_bytes = lambda message, like: like


# --- models ----------------------------------------------------------------------------------------------------------


@caught_by("equivalence/test_trained_leaves.py", "test_adapters_move_and_what_they_adapt_does_not")
def an_adapter_that_is_not_in_params():
    """Half of an adapter is frozen: it is neither trained nor sent, and nobody is told."""
    import jax

    from sottovoce.models.lora import Adapted

    real = Adapted.trained

    def trained(self):
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf and not jax.tree_util.keystr(path).endswith(".down"), real(self)
        )

    Adapted.trained = trained


@caught_by("equivalence/test_trained_leaves.py", "test_adapters_move_and_what_they_adapt_does_not")
def frozen_weights_that_get_noise():
    """The matrix under an adapter counts as trained: it is clipped, noised and sent too."""
    import jax

    from sottovoce.models.lora import Adapted

    real = Adapted.trained

    def trained(self):
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf or jax.tree_util.keystr(path).endswith(".weight"), real(self)
        )

    Adapted.trained = trained


@caught_by(
    "unit/commands/test_initial_model.py", "test_a_private_run_needs_the_owners_word_on_a_folder_of_hugging_face"
)
def weights_of_unknown_origin():
    """A private run starts from downloaded weights although nobody said that their text was public."""
    from sottovoce.commands import initial_model

    real = initial_model._facts_of

    def declared(source, recipe, store, *, again):
        return real(source, recipe.replace(model={"initial_is_public": True}), store, again=again)

    initial_model._facts_of = declared


@caught_by(
    "unit/commands/test_initial_model.py", "test_a_private_run_needs_the_owners_word_on_a_run_without_a_guarantee"
)
def a_guarantee_that_a_run_does_not_have():
    """A private run starts from a run whose users nothing protects, as if they had a guarantee."""
    from sottovoce.commands.model_folder import ModelFolder

    ModelFolder.has_guarantee = property(lambda folder: folder.statement is not None)


@caught_by(
    "equivalence/test_two_rounds.py",
    "test_users_and_rounds_have_dropout_of_their_own_and_the_same_again_when_redone",
)
def one_mask_for_everybody():
    """Every user of every round trains with the same dropout."""
    import jax

    from sottovoce.local import update

    real = update.mean_loss_and_gradient
    update.mean_loss_and_gradient = lambda *args: real(*args[:-1], jax.random.key(0))


# --- files -----------------------------------------------------------------------------------------------------------


@caught_by("unit/data/test_store.py", "test_a_bit_that_flipped_is_found_wherever_it_is")
def a_store_that_is_believed():
    """Nobody compares a store's files with their hashes."""
    from sottovoce.data import store

    store._check_hash = lambda path, hashes: None


@caught_by("unit/data/test_corpus.py", "test_no_error_repeats_what_people_wrote")
def an_error_that_tells():
    """An error lists the fields that a record has."""
    from sottovoce.data import corpus

    real = corpus._separated

    def telling(path, *rest):
        try:
            yield from real(path, *rest)
        except corpus.SottoError as error:
            raise corpus.SottoError(f"{error}: {path.read_text()}") from None

    corpus._separated = telling


# --- reporting -------------------------------------------------------------------------------------------------------


@caught_by("unit/reporting/test_findings.py", "test_attacks_on_people_stay_out_of_what_is_public")
def a_page_that_tells():
    """Attacks on people's text on a page that anybody may read."""
    from sottovoce.reporting import report

    report.public = list


@caught_by("end_to_end/test_paying.py", "test_the_public_record_holds_nothing_exact_about_the_cohort")
def held_out_people_counted_exactly():
    """How much they wrote, to the word, in the public record."""
    from sottovoce.commands import train

    train.Training._measured = lambda training, evaluation: {"evaluation": evaluation.to_json()}


# --- experiments -----------------------------------------------------------------------------------------------------


@caught_by("unit/papers/mcmahan2018/test_trials.py", "test_only_unprotected_trials_know_how_many_users_there_are")
def results_that_tell():
    """A ceiling without noise, on people who are promised something, keeps their cohorts and clipped shares."""
    from sottovoce.papers.engine.trial import Trial

    Trial.is_protected = property(lambda self: self.is_private)


# --- sampled examples -------------------------------------------------------------------------------------------------

MOVED = "test_a_user_moves_a_round_by_their_examples_that_it_draws[fixed]"
EXAMPLE_ROUNDS = "test_every_round_is_charged_for_all_examples_of_a_user"


@caught_by("unit/data/test_examples.py", "test_a_users_examples_are_the_beginning_of_their_text_in_pieces")
def a_last_example_of_all_that_is_left():
    """The last example of a user holds all the rest of their text: what is beyond the most examples is trained on."""
    import numpy as np

    from sottovoce.data import examples
    from sottovoce.data.rows import Rows

    def _spans(self, rows):
        users, places = np.divmod(np.asarray(rows, np.int64), self.most)
        for values, here, starts, ends in Rows._spans(self, users):
            first = np.minimum(starts + places[here] * self.length, ends)
            yield values, here, first, np.where(places[here] == self.most - 1, ends, first + self.length)

    examples.ExampleRows._spans = _spans


@caught_by("statistical/test_sampling.py", "test_a_user_joins_with_a_binomial_number_of_examples[0.15-4]")
def as_many_examples_as_a_user_has():
    """The number of a user's examples is not bounded: each user brings as many as the cap holds."""
    from sottovoce.data import examples
    from sottovoce.training.variants import example_level

    real = examples.examples_of
    example_level.examples_of = lambda store, length, most: real(store, length, 2 * most)


@caught_by("equivalence/test_example_neighbours.py", MOVED)
def an_example_charged_as_a_user():
    """A round is charged for one example, as example-level privacy is."""
    from sottovoce.privacy.sampling import Examples
    from sottovoce_evidence.accounting.events import SampledExamples

    Examples.event = lambda self, noise_multiplier: SampledExamples(noise_multiplier, self.example_rate, 1)


@caught_by("statistical/test_sampling.py", "test_a_user_joins_with_a_binomial_number_of_examples[0.15-4]")
def examples_drawn_at_the_rate_of_users():
    """An example joins with the chance cohort / users: as many times too often as users have examples."""
    from sottovoce.privacy.sampling import Examples, Poisson

    def sample(self, people, key, round_number=0):
        return Poisson(min(1.0, self.example_rate * self.examples_per_user), self.hardened).sample(people, key)

    Examples.sample = sample


@caught_by("end_to_end/test_example_runs.py", EXAMPLE_ROUNDS)
def places_that_are_users():
    """The rate of examples is worked out from the declared users alone, and the places of all examples are drawn."""
    from sottovoce_evidence.recipe import Privacy

    Privacy.rate = property(lambda self: min(1.0, self.cohort / self.users))


@caught_by("statistical/test_sampling.py", "test_a_user_joins_with_a_binomial_number_of_examples[0.15-4]")
def one_coin_for_all_examples_of_a_user():
    """Users are drawn, with all their examples: they join as often on average, and move a round much further."""
    import numpy as np

    from sottovoce.privacy.sampling import Examples, Poisson

    def sample(self, people, key, round_number=0):
        users = Poisson(self.example_rate, self.hardened).sample(range(len(people) // self.examples_per_user), key)
        return np.ravel(users[:, None] * self.examples_per_user + np.arange(self.examples_per_user))

    Examples.sample = sample


@caught_by("accounting/test_mixture.py", "test_delta_of_one_round_is_the_integral_of_what_is_likelier", EVIDENCE)
def examples_that_never_join_together():
    """The chance of two or more examples of one user in a round is left out of the loss."""
    import numpy as np

    from sottovoce_evidence.accounting import mixture

    real = mixture.components

    def components(*given):
        parts = real(*given)
        none = parts.logs[0]
        return mixture.Components(np.array([none, np.log(-np.expm1(none))]), 0.0)

    mixture.components = components


@caught_by("unit/kernels/test_cpu.py", "test_rows_that_are_the_same_get_the_change_of_each")
def a_norm_that_counts_some_rows_twice():
    """The norm that a CPU clips to counts the row of a word as often as the step has the word."""
    import jax.numpy as jnp

    from sottovoce.kernels import cpu

    def add_rows(delta, squares, ids, change):
        after = delta.at[ids].add(change)
        return after, squares + jnp.sum(jnp.square(after[ids]) - jnp.square(delta[ids]))

    cpu.add_rows = add_rows


NEXT = "test_a_coordinate_whose_first_candidate_is_not_kept_goes_on_to_the_next"


@caught_by("unit/privacy/test_noise.py", "test_coordinates_beyond_those_that_are_drawn_together_are_drawn_as_alone")
def the_same_noise_for_every_part():
    """Each part of the noise that a CPU draws together counts its blocks from 0: the noise repeats."""
    import numpy as np

    from sottovoce.privacy import noise

    real, part = noise.chacha20_by_openssl, noise._BLOCKS_AT_ONCE
    noise.chacha20_by_openssl = lambda key, blocks, nonce: real(key, blocks, nonce)[np.arange(blocks) % part]


@caught_by("unit/privacy/test_noise.py", NEXT + "[50352]")
def the_same_next_candidates_for_every_part():
    """Where a first candidate is not kept, each part of the noise has the next ones of the first part."""
    import jax

    from sottovoce.privacy import noise

    real, part = noise.chacha20_blocks, 3 * noise._BLOCKS_AT_ONCE
    noise._draw = jax.jit(noise._draw.__wrapped__, static_argnums=(1, 2))
    noise.chacha20_blocks = lambda key, counters, nonce: real(key, counters % part, nonce)


@caught_by("unit/privacy/test_noise.py", NEXT + "[0]")
def the_same_next_candidates_for_every_stream():
    """Where a first candidate is not kept, all streams of a key have the same next ones."""
    import jax

    from sottovoce.privacy import noise

    real = noise.chacha20_blocks
    noise._draw = jax.jit(noise._draw.__wrapped__, static_argnums=(1, 2))
    noise.chacha20_blocks = lambda key, counters, nonce: real(key, counters, (nonce[0], 0, 0))


SETTLED = "test_what_is_called_settled_is_as_drawn_one_by_one"


@caught_by("unit/privacy/test_noise.py", SETTLED)
def a_candidate_that_is_taken_where_there_is_no_room_for_the_next():
    """A first candidate that is not kept is taken where too many coordinates need the next."""
    from sottovoce.privacy import noise

    write_otherwise(noise, "_draw", "(kept & sure).at[places]", "sure.at[places]")


@caught_by("unit/privacy/test_noise.py", SETTLED)
def a_candidate_that_is_passed_over_while_in_doubt():
    """A further candidate is taken although one before it is in doubt, and might have been kept."""
    from sottovoce.privacy import noise

    write_otherwise(noise, "_draw", " & (certain | (jnp.arange(3) > first_found)).all(axis=1)", "")


@caught_by("unit/privacy/test_chacha.py", "test_openssl_has_the_same_blocks[4097]")
def a_key_stream_that_begins_again():
    """Each piece of the key stream that OpenSSL is asked for begins at block 0: the noise repeats."""
    import numpy as np

    from sottovoce.privacy import chacha

    real, piece = chacha.chacha20_by_openssl, len(chacha._ZEROS) // 64
    chacha.chacha20_by_openssl = lambda key, blocks, nonce: real(key, blocks, nonce)[np.arange(blocks) % piece]


@caught_by("unit/privacy/test_noise.py", "test_all_is_settled_where_no_coordinate_is_in_doubt[5]")
def a_coordinate_that_nobody_settles():
    """The last coordinate of the noise is taken for padding: what is in doubt there is released as it is."""
    from sottovoce.privacy import noise

    real = noise.drawn_from
    noise.drawn_from = lambda key, scale, stream, size: real(key, scale, stream, max(0, size - 1))


@caught_by("unit/privacy/test_noise.py", NEXT + "[0]")
def a_next_candidate_for_a_neighbour():
    """Further candidates are drawn for the coordinate after the one whose first is not kept."""
    import jax

    from sottovoce.privacy import noise

    real = noise._places_of
    noise._draw = jax.jit(noise._draw.__wrapped__, static_argnums=(1, 2))
    noise._places_of = lambda chosen, room: real(chosen, room) + 1


@caught_by("unit/privacy/test_chacha.py", "test_the_kernel_makes_the_same_blocks[300]")
def the_same_noise_for_every_tile():
    """Each program of the kernel counts its blocks from those of the first: the noise of a GPU repeats."""
    from sottovoce.privacy import chacha

    real = chacha._by_kernel
    chacha._by_kernel = lambda header, counters, interpret=False: real(header, counters % chacha._TILE, interpret)


# --- private evaluation ----------------------------------------------------------------------------------------------

SCALE = "test_the_noise_is_exact_of_the_scale_that_is_paid_for_and_its_own_for_every_sum"


@caught_by("unit/privacy/test_bounded_sums.py", SCALE)
def half_the_noise_of_an_evaluation():
    """Held-out users pay for twice the noise that they get."""
    from sottovoce.privacy import bounded_sums

    real = bounded_sums.rounded_gaussian
    bounded_sums.rounded_gaussian = lambda key, size, std, stream: real(key, size, std / 2, stream)


@caught_by("unit/privacy/test_bounded_sums.py", "test_a_user_moves_the_sums_by_no_more_than_is_paid_for")
def a_held_out_user_counted_twice():
    """A held-out user's text is in the sums two times."""
    from sottovoce.privacy.bounded_sums import BoundedSums

    real = BoundedSums.bounded
    BoundedSums.bounded = lambda self, ranks, loss: 2 * real(self, ranks, loss)


@caught_by("unit/commands/test_private_evaluation.py", "test_the_charge_is_on_disk_before_the_noise_is_drawn")
def an_evaluation_charged_when_it_is_done():
    """The noisy sums exist before anybody has paid: a process that is stopped in between has seen them for nothing."""
    from sottovoce.commands import private_evaluation

    real = private_evaluation.pay_and_keep
    private_evaluation.pay_and_keep = lambda file, cost, charge, draw, about: real(
        file, cost, lambda: None, lambda: (draw(), charge())[0], about
    )


# --- choosing among runs ---------------------------------------------------------------------------------------------


@caught_by("accounting/test_selection.py", "test_choosing_costs_more_than_one_run_and_composes_with_others", EVIDENCE)
def a_choice_that_is_charged_as_one_run():
    """The best of many runs costs what one of them costs."""
    from sottovoce_evidence.accounting import rdp

    rdp.selection.best_of = lambda orders, one, expected_runs, distribution: one


@caught_by("accounting/test_selection.py", "test_the_bound_holds_for_every_outcome_of_small_mechanisms", EVIDENCE)
def a_choice_without_its_second_term():
    """Only the mean number of runs is charged: what a run says by being the best is forgotten."""
    import math

    from sottovoce_evidence.accounting import selection

    def cheaper(orders, one, expected_runs, distribution):
        return one + math.log(expected_runs) / (orders - 1)

    selection.best_of = cheaper


@caught_by("unit/commands/test_select.py", "test_the_charge_is_on_disk_before_the_number_of_runs_is_drawn")
def runs_that_are_drawn_before_they_are_paid_for():
    """The number of runs is known, and may be thrown away, before anybody is charged."""
    from sottovoce.commands import select

    real = select._charges_of

    def early(recipes, work):
        select.draw_runs(5.0, "geometric")
        return real(recipes, work)

    select._charges_of = early


@caught_by("unit/commands/test_select.py", "test_the_release_states_the_choice_and_is_verified")
def a_release_of_select_starts_a_run_on_its_own_people() -> None:
    """The store is charged under one name, and the release is looked for under another."""
    from dataclasses import replace

    from sottovoce.commands import initial_model

    real = initial_model._runs_of

    def under_another_name(source):
        first, *rest = real(source) or [None]
        return () if first is None else (replace(first, run=source.statement.run), *rest)

    initial_model._runs_of = under_another_name


@caught_by(
    "unit/commands/test_initial_model.py", "test_a_run_from_a_private_run_of_the_same_people_has_the_epsilon_of_both"
)
def a_start_of_the_same_people_that_costs_nothing() -> None:
    """A run starts from a private run on its own people, and its ε is that of its own rounds alone."""
    from sottovoce.commands import new_run

    new_run.charges_of_start = lambda recipe, store: ()


@caught_by("unit/commands/test_initial_model.py", "test_a_start_with_some_runs_here_and_some_elsewhere_is_refused")
def a_start_that_is_asked_for_its_last_run_alone() -> None:
    """A run of other people began with a model of these: their first charge is counted nowhere."""
    from sottovoce.commands import initial_model

    real = initial_model._runs_of
    initial_model._runs_of = lambda source: real(source)[:1]


@caught_by("unit/runs/test_hash_chain.py", "test_every_charge_leaves_a_trace_of_itself")
def a_charge_without_a_run_leaves_no_trace() -> None:
    """The ledger of a store may be lost unseen."""
    from sottovoce.runs.ledger import StoreLedger

    StoreLedger._leave_trace = lambda self: None


@caught_by("unit/commands/test_select.py", "test_the_best_is_kept_and_the_others_are_erased")
def runs_that_were_not_chosen_and_stay():
    """The runs that lost are still there for anyone who looks."""
    import shutil
    from types import SimpleNamespace

    from sottovoce.commands import select

    select.shutil = SimpleNamespace(copyfile=shutil.copyfile, rmtree=lambda path: None)


@caught_by("end_to_end/test_correlated_runs.py", "test_no_released_file_follows_exactly_from_who_takes_part")
def a_public_figure_of_who_takes_part():
    """The ε of the rounds that users joined is in the record, which is released."""
    from sottovoce.runs.folder import RunFolder

    real = RunFolder.save_participation

    def publish(run, figures):
        real(run, figures)
        run.record.append({"round": run.record.read()[-1]["round"], **figures})

    RunFolder.save_participation = publish


VERBS = "test_private_users_are_opened_by_no_verb_and_are_in_none_of_its_files"


@caught_by("unit/commands/test_held_out.py", f"{VERBS}[private]")
def private_users_who_are_measured_exactly():
    """Training opens the held-out users of a store, whatever was declared of them."""
    from sottovoce.commands import stores
    from sottovoce.data.store import Store

    stores.held_out_of = lambda folder: Store.open(folder, "test", privately=True)


@caught_by("unit/commands/test_held_out.py", "test_an_exact_figure_of_private_users_is_asked_for_in_vain")
def private_users_whom_anyone_opens():
    """A store gives the held-out users who were declared private to whoever asks."""
    from sottovoce.data.store import Store

    real = Store.open.__func__
    Store.open = classmethod(lambda cls, *which, **how: real(cls, *which, **{**how, "privately": True}))


@caught_by("unit/commands/test_held_out.py", f"{VERBS}[exact]")
def exact_users_who_are_not_listed():
    """The statement of a run does not say that its held-out users are not protected."""
    from sottovoce_evidence import statement

    statement.EXACT = "as declared"


@caught_by(
    "test_verify.py",
    "test_a_lie_with_all_that_follows_from_it_fails[held-out people are private, and measured exactly]",
    EVIDENCE,
)
def exact_figures_in_a_release_that_nobody_sees():
    """A release may have exact figures of held-out users who were declared private."""
    from sottovoce_evidence.verify import _Found

    _Found._held_out_faults = lambda found, due: iter(())


@caught_by("unit/data/test_store.py", "test_what_is_declared_of_held_out_users_is_kept[private]")
def a_declaration_that_is_lost():
    """A store that was prepared with `--held-out private` says that its held-out users are exact."""
    from sottovoce.data import prepare

    real = prepare.write_facts
    prepare.write_facts = lambda folder, facts, *known: real(folder, {**facts, "held_out": "exact"}, *known)


# --- evidence --------------------------------------------------------------------------------------------------------


@caught_by("test_verify.py", "test_a_release_is_verified[words]", EVIDENCE)
def a_vocabulary_that_the_statement_forgets():
    """The ε of a statement is that of its rounds: what the same people were charged before is left out."""
    from sottovoce_evidence import statement

    write_otherwise(statement, "state", "merged(evidence.charged)", "merged(list(evidence.rounds.items()))")


@caught_by("test_verify.py", "test_a_release_is_verified[start]", EVIDENCE)
def a_start_that_the_statement_forgets():
    """What the runs that a model starts from cost the same people is no part of what was charged."""
    from sottovoce_evidence import statement

    left = "total_of(evidence.charged) - total_of(facts.start.charged if facts.start else ())"
    write_otherwise(statement, "state", "merged(evidence.charged)", f"tuple(({left}).items())")


@caught_by("test_verify.py", "test_any_leaf_of_the_statement_that_is_changed_fails[turns]", EVIDENCE)
def differences_of_the_first_level_alone():
    """What is stated within another fact, such as the noise of the mechanism, is not compared."""
    from sottovoce_evidence import statement

    real = statement.differences
    statement.differences = lambda stated, due, path="": iter(()) if path else real(stated, due, path)


@caught_by("test_verify.py", "test_a_readme_that_is_edited_is_named[0]", EVIDENCE)
def a_readme_that_says_anything():
    """An edit of the README is not named."""
    from sottovoce_evidence.verify import _Found

    _Found._read_readme = lambda found, evidence, due: None


@caught_by("test_verify.py", "test_a_release_is_verified[poisson]", EVIDENCE)
def an_epsilon_that_is_rounded_down():
    """privacy.json states an ε a little below the one that was proved."""
    from sottovoce_evidence import statement

    statement._rounded = lambda name, value: (
        float(f"{value * (1 - 5e-4):.4g}") if statement.is_epsilon(name) and isinstance(value, float) else value
    )


# --- files that somebody else wrote ----------------------------------------------------------------------------------


# --- verifying a release ---------------------------------------------------------------------------------------------


@caught_by("accounting/test_cross_check.py", "test_it_agrees_with_ours_for_one_user_replaced[correlated]", EVIDENCE)
def one_user_replaced_who_is_only_added():
    """The second opinion on replacing a user is that on adding one, which is half as far."""
    from sottovoce_evidence.accounting import cross_check

    real = cross_check._composed
    cross_check._composed = lambda events, delta, step, replaced: real(events, delta, step, False)


LIE = "test_a_lie_with_all_that_follows_from_it_fails"
LEAF = "test_any_leaf_of_the_statement_that_is_changed_fails"


@caught_by("test_verify.py", f"{LIE}[rounds were done again, and not paid for]", EVIDENCE)
def rounds_that_were_paid_again_and_excuse_all_others():
    """A release that says that a round was done again need not charge its rounds."""
    from sottovoce_evidence import verify

    real = verify.charge_faults
    verify.charge_faults = lambda evidence: iter(()) if evidence.facts.charged_again else real(evidence)


@caught_by("test_verify.py", f"{LIE}[half of the rounds are charged]", EVIDENCE)
def rounds_that_nobody_charges():
    """A release may charge fewer rounds than its recipe asks for."""
    from sottovoce_evidence import verify

    verify.charge_faults = lambda evidence: iter(())


@caught_by("test_state.py", "test_fewer_rounds_than_asked_for_need_a_budget_that_forbids_the_next", EVIDENCE)
def a_budget_that_forbids_nothing():
    """A run may have planned fewer rounds than its recipe asks for, whatever its budget."""
    from sottovoce_evidence import statement

    statement._unbudgeted = lambda *args: iter(())


@caught_by("test_verify.py", f"{LEAF}[turns]", EVIDENCE)
def a_statement_that_is_believed():
    """A release may state any relation, rate, sensitivity and noise beside the charges of its ledger."""
    from sottovoce_evidence.verify import _Found

    _Found._compared = lambda found, stated, due: iter(())


@caught_by("test_verify.py", f"{LEAF}[masked]", EVIDENCE)
def an_epsilon_that_is_not_computed_again():
    """Of all ε in a statement, the first alone is checked."""
    from sottovoce_evidence.verify import _Found

    real = _Found._compared
    _Found._compared = lambda *given: (fault for fault in real(*given) if not fault.startswith("epsilon_"))


@caught_by("test_verify.py", "test_files_of_others_and_hostile_files_are_refused", EVIDENCE)
def a_link_that_counts_for_nothing():
    """What is no plain file is left out of the folder's list, and opened later."""
    from sottovoce_evidence import verify

    real = verify.signature.check_folder
    verify.signature.check_folder = lambda *given: dataclasses.replace(real(*given), odd=(), file_faults=())


# --- noise, seen from outside ----------------------------------------------------------------------------------------

OUTSIDE = "black_box/test_noise_is_what_is_charged.py"
STOPPED = "test_models_of_a_run_that_was_stopped_twice_differ_by_the_noise_that_is_charged"
COPIED = "test_no_round_is_released_twice_by_a_copy"
SILOS = "test_models_of_silos_that_add_noise_differ_by_what_is_charged_or_more"
COMMANDED = "test_models_that_the_command_trains_differ_by_the_noise_that_is_charged"


def _scale_all_noise(mechanism: ModuleType, by: float) -> None:
    """Noise is drawn at another scale, whatever is said of it."""
    gaussian, skellam = mechanism.rounded_gaussian, mechanism.skellam
    mechanism.rounded_gaussian = lambda key, size, std, *more: gaussian(key, size, by * std, *more)
    mechanism.skellam = lambda key, size, std: skellam(key, size, by * std)


@caught_by(OUTSIDE, f"{STOPPED}[blt]")
def half_the_noise_of_a_stream():
    """Correlated noise is drawn at half its scale; what is said of it stays."""
    from sottovoce.privacy import mechanism

    _scale_all_noise(mechanism, 0.5)


@caught_by(OUTSIDE, f"{STOPPED}[independent]")
def nearly_all_of_the_noise():
    """Noise of 0.95 of its scale."""
    from sottovoce.privacy import mechanism

    _scale_all_noise(mechanism, 0.95)


@caught_by(OUTSIDE, f"{STOPPED}[independent]")
def half_the_noise_said_too():
    """Noise at half its scale, and the statement says so, beside the ε of all of it."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.noise_std
    Mechanism.noise_std = lambda *args: (real(*args)[0] / 2, real(*args)[1])


@caught_by(OUTSIDE, f"{STOPPED}[devices]")
def half_the_noise_of_simulated_devices():
    """The noise of devices in a simulation has half its scale."""
    from sottovoce.privacy import mechanism

    _scale_all_noise(mechanism, 0.5)


@caught_by(OUTSIDE, f"{STOPPED}[independent]")
def noise_that_is_added_twice():
    """Two draws of noise are in a model where one is charged."""
    from sottovoce.privacy import mechanism

    real = mechanism._noised
    mechanism._noised = lambda part, std, step, key, stream, *use: real(
        real(part, std, step, key, stream + 2), std, step, key, stream, *use
    )


@caught_by(OUTSIDE, f"{STOPPED}[independent]")
def noise_of_the_first_rounds_after_a_resume():
    """The key of the noise follows from how many rounds a process has done."""
    from sottovoce.runs.secrets import Secrets

    real, done = Secrets.noise_key, [0]

    def noise_key(self, number, release, digest):
        done[0] += 1
        return real(Secrets(1, bytes(32), self.salt), 1, str(done[0]), b"")

    Secrets.noise_key = noise_key
    _at_every_resume(lambda: done.__setitem__(0, 0))


@caught_by(OUTSIDE, f"{STOPPED}[independent]")
def a_round_released_again_for_free():
    """A run goes on from the checkpoint before the last one: the last round gets other noise, for one charge."""
    import os

    from sottovoce.runs import checkpoint
    from sottovoce.runs.secrets import Secrets

    real, own = Secrets.noise_key, [b""]
    Secrets.noise_key = lambda self, number, release, digest: real(self, number, release, digest + own[0])

    def at_a_resume():
        own[0] = os.urandom(8)
        files = checkpoint._files
        checkpoint._files = lambda folder: (setattr(checkpoint, "_files", files), files(folder)[:-1])[1]

    _at_every_resume(at_a_resume)


@caught_by(OUTSIDE, f"{COPIED}[independent]")
def a_copy_that_pays_nothing():
    """A copy of a run that went on elsewhere goes on with other noise, for nothing."""
    from sottovoce.runs.payments import Payments

    Payments._acquire = lambda self, own, done: self.lease.acquire(self.ledger.chain, lambda: None)


@caught_by(OUTSIDE, f"{COPIED}[banded]")
def a_copy_that_shares_correlated_noise():
    """A copy of a run with correlated noise goes on for another charge."""
    from sottovoce.runs.payments import Payments

    def acquire(self, own, done):
        return self.lease.acquire(
            self.ledger.chain, lambda: self.store_ledger.charge(self.run, "a copy", own.charges.event(1), 1)
        )

    Payments._acquire = acquire


@caught_by(OUTSIDE, f"{STOPPED}[banded]")
def independent_noise_charged_as_banded():
    """A stream forgets all that it drew: a banded matrix is charged, and the noise of rounds is independent."""
    import jax.numpy as jnp

    from sottovoce.privacy.noise_stream import BandedStream

    real = BandedStream.next
    BandedStream.next = lambda self, state, *rest: real(self, jnp.zeros_like(state), *rest)


@caught_by(OUTSIDE, f"{STOPPED}[banded]")
def a_stream_that_forgets_at_resume():
    """The state of the noise is zero after a resume: noise that was to be taken off again stays."""
    import numpy as np

    from sottovoce.training.server import ServerState

    real = ServerState.load
    ServerState.load = lambda self, number, arrays, noise: real(
        self, number, arrays, {name: np.zeros_like(values) for name, values in noise.items()}
    )


@caught_by(OUTSIDE, f"{STOPPED}[blt]")
def a_blt_with_other_decays():
    """The buffers of a BLT decay in another way than is charged."""
    from dataclasses import replace

    from sottovoce.privacy.noise_stream import BltStream
    from sottovoce_evidence.accounting.matrices import Blt

    real = BltStream.next
    BltStream.next = lambda self, *rest: real(
        replace(self, matrix=Blt(self.matrix.scales, tuple(0.8 * decay for decay in self.matrix.decays))), *rest
    )


@caught_by(OUTSIDE, f"{STOPPED}[independent]")
def noise_without_its_tails():
    """What is beyond three standard deviations is drawn nearer."""
    import jax.numpy as jnp

    from sottovoce.privacy import mechanism

    real = mechanism._add_steps
    mechanism._add_steps = lambda part, noise, step, finer=0: real(
        part, jnp.clip(noise, *(3 * jnp.std(noise) * jnp.array([-1, 1])).astype(noise.dtype)), step, finer
    )


@caught_by(OUTSIDE, f"{STOPPED}[independent]")
def one_noise_for_all_arrays():
    """All arrays of a model get the beginning of one noise."""
    import jax

    from sottovoce.privacy import mechanism

    real = mechanism._noised
    mechanism._noised = lambda part, std, step, key, stream, use=lambda noised: noised: use(
        jax.tree.map(lambda leaf: real((leaf,), std, step, key, stream)[0], part)
    )


@caught_by(OUTSIDE, "test_the_noise_of_a_round_is_whole_steps_of_a_public_grid[independent]")
def released_noise_in_floating_point():
    """Float32 noise, added in float64 and rounded to float32."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from sottovoce.privacy import mechanism

    def with_noise(part, std, step, key, stream, use=lambda noised: noised):
        draw, std = np.random.default_rng([*key, stream]).standard_normal, np.float32(std)

        def add(leaf):
            return jnp.asarray(np.float32(np.asarray(leaf) + np.float64(std * draw(np.shape(leaf), np.float32))))

        return use(jax.tree.map(add, part))

    mechanism._noised = with_noise


@caught_by(OUTSIDE, "test_the_noise_of_one_run_tells_nothing_of_that_of_another")
def noise_that_follows_from_the_round_alone():
    """The noise of a round is the same in every run."""
    from hashlib import sha256

    from sottovoce.runs.secrets import Secrets

    Secrets.noise_key = lambda self, number, release, digest: sha256(str(number).encode()).digest()


@caught_by(OUTSIDE, f"{COMMANDED}[banded-2-0]")
def noise_of_every_process():
    """Each of two processes adds noise: twice what is charged."""
    import jax
    import numpy as np

    from sottovoce.multiprocess import cohort_sum

    real, draw = cohort_sum._sum_together, np.random.default_rng().standard_normal

    def summed(*arguments):
        found = real(*arguments)
        # z S of the recipe, in whole steps of a grid that is coarser than that of the sum.
        return found._replace(
            total=jax.tree.map(lambda leaf: leaf + np.rint(2**14 * 24 * draw(leaf.shape)) / 2**14, found.total)
        )

    cohort_sum._sum_together = summed


@caught_by(OUTSIDE, f"{COMMANDED}[independent-1-10]")
def the_noise_of_a_killed_process_again():
    """The key of the noise follows from how many rounds a process has done since it was started."""
    from sottovoce.runs.secrets import Secrets

    real, done = Secrets.noise_key, [0]

    def noise_key(self, number, release, digest):
        done[0] += 1
        return real(Secrets(1, bytes(32), self.salt), 1, str(done[0]), b"")

    Secrets.noise_key = noise_key


@caught_by(OUTSIDE, f"{SILOS}[0]")
def half_the_noise_of_silos():
    """Silos draw half of the standard deviation that is charged."""
    from sottovoce.federation import device

    real = device.skellam
    device.skellam = lambda key, size, std: real(key, size, std / 2)


@caught_by(OUTSIDE, f"{SILOS}[0]")
def silos_that_draw_once():
    """Every silo sends the noise of its first round in all rounds."""
    from sottovoce.federation import device

    real, own = device.skellam, []

    def skellam(key, size, std):
        own.append(key)
        return real(own[0], size, std)

    device.skellam = skellam
