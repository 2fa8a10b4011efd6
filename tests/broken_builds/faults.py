"""Deliberate faults, each of a kind that real systems had: what one guards, and the test that must fail with it.

SOTTOVOCE_FAULTS=noise (or sampling, clip, denominator, ...) tries those that guard one thing.

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
    guards: str  # what it shows to be watched: "sampling", "clip", "denominator", "noise", "accounting", "ledger", ...


FAULTS: dict[str, Fault] = {}
FOLLOWS = "test_users_clip_to_the_norm_of_the_round_and_the_next_follows_the_noised_bits"
DECLARED = "test_sampling_denominator_and_noise_are_those_of_the_declared_population"


def caught_by(path: str, test: str, tests: str = "tests", *, guards: str):
    """The fault that follows must make this test fail."""

    def register(apply: Callable[[], None]) -> Callable[[], None]:
        FAULTS[apply.__name__] = Fault(f"{tests}/{path}::{test}", apply, guards)
        return apply

    return register


def write_otherwise(module: ModuleType, name: str, old: str, new: str) -> None:
    """Compile a function of a module again, with one piece of its text replaced."""
    source = inspect.getsource(inspect.unwrap(getattr(module, name)))
    assert source.count(old) == 1, f"{name} has {source.count(old)} times {old!r}"
    exec(source.replace(old, new), vars(module))


# --- devices --------------------------------------------------------------------------------------------------------


@caught_by(
    "unit/federation/aggregation/test_plain.py",
    "test_what_a_hostile_device_adds_is_within_the_sensitivity_of_both_estimators",
    guards="clip",
)
def a_device_that_is_believed():
    """The server does not clip again what a device sends."""
    import numpy as np

    from sottovoce.federation.aggregation import plain

    plain.within = lambda leaves, bound: [leaf.astype(np.int64) for leaf in leaves]


@caught_by("unit/federation/flower/test_proxy.py", "test_a_device_is_known_by_its_signature", guards="keys")
def a_key_that_anybody_may_name():
    """A device is known by the key that a request names, whoever signed it."""
    from base64 import b64decode

    from sottovoce.federation.flower import proxy

    proxy.signing_key = lambda headers: b64decode(headers.get("flwr-public-key", ""))


@caught_by("unit/federation/test_device.py", "test_every_vector_has_noise_of_its_own", guards="noise")
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


@caught_by("equivalence/test_silo_neighbours.py", TWO_SILOS, guards="clip")
def silos_that_clip_to_the_norm_of_a_person():
    """Every silo clips to S, whatever else its people are users of."""
    from sottovoce.build import assembly

    real = assembly.build_mechanism

    def whole(recipe, layers):
        alone = real(recipe.replace(federation={"max_silos": 1}), layers)
        return dataclasses.replace(real(recipe, layers), clipping=alone.clipping)

    assembly.build_mechanism = whole


@caught_by(
    "unit/privacy/test_sampling.py",
    "test_a_person_in_several_silos_is_charged_for_the_coins_of_all",
    guards="accounting",
)
def silos_charged_by_the_coin_of_one():
    """A round is charged as if one silo alone drew a person, with S/m."""
    from sottovoce.privacy.sampling import Poisson
    from sottovoce_evidence.accounting.events import SampledGaussian

    Poisson.event = lambda self, z: SampledGaussian(z * self.silos, "poisson", self.user_rate)


@caught_by("unit/federation/test_device.py", "test_the_clip_norm_that_counts_is_the_one_of_the_round", guards="clip")
def a_device_clips_to_what_the_server_says():
    """A device takes the clip norm of a task, also above the one of the recipe and its silos."""
    from sottovoce.federation import device

    device._are_planned = lambda mechanism, number, norms: bool((norms > 0).all())


@caught_by(
    "unit/federation/test_limits.py",
    "test_a_run_that_bounds_participation_is_joined_no_more_than_that",
    guards="sampling",
)
def a_device_trusts_the_server_with_the_separation():
    """A device joins whenever it is asked."""
    from sottovoce.federation.limits import Participation

    Participation._may_join = lambda self, task, row, limits, allowed: True


@caught_by("unit/federation/test_joined.py", "test_a_round_that_is_done_again_asks_the_same_devices", guards="sampling")
def other_phones_when_a_round_is_done_again():
    """A server that was killed draws again: the phones of before have joined, and are not in the sum."""
    from sottovoce.federation.joined import Joined

    Joined.asked = lambda self, number: None


@caught_by("unit/federation/test_device.py", "test_a_device_answers_one_task_a_round", guards="sampling")
def a_round_that_the_server_names():
    """A server asks a device twice for a round, with other weights, and calls it another round."""
    from sottovoce.federation.messages import Task

    Task.which = property(lambda self: (f"{self.run} {self.leaves[0].sum()}", self.round))


@caught_by(
    "unit/federation/masking/test_participant.py",
    "test_a_sum_of_a_few_is_not_opened_by_naming_all_as_survivors",
    guards="masks",
)
def survivors_that_never_shared():
    """A device counts whomever the server names: a sum of half of the survivors opens, with half of their noise."""
    from sottovoce.federation.masking import participant

    write_otherwise(participant, "Participant", "max(self._graph.threshold, terms.survivors - 1)", "1")


KILLED = "test_a_masked_round_of_a_killed_server_is_closed_as_a_round_of_nobody"


@caught_by("end_to_end/test_killed_servers.py", f"{KILLED}[confirm]", guards="masks")
def devices_that_are_asked_before_it_is_on_disk():
    """The line that devices of a masked round are asked is in memory alone."""
    from sottovoce.runs.ledger import Ledger

    Ledger.ask = lambda self, number: number not in self.asked and not self.asked.add(number)


@caught_by("end_to_end/test_killed_servers.py", f"{KILLED}[opened]", guards="masks")
def a_masked_round_that_is_asked_again():
    """After a restart a second sum of a round is opened: it may differ from the first by one device."""
    from sottovoce.federation.rounds import Coordinator

    Coordinator._may_ask = lambda self, assembly, payment: payment.ask() or True


@caught_by(
    "end_to_end/test_killed_servers.py",
    "test_what_is_logged_of_a_round_waits_for_its_checkpoint[plain]",
    guards="checkpoint",
)
def a_log_of_a_round_that_is_not_committed():
    """The warnings of a round are logged while it is played."""
    from sottovoce.runs.payments import RoundPayment

    RoundPayment.once_committed = lambda self, show: show()


# --- noise of devices -------------------------------------------------------------------------------------------------

CHARGED = "test_the_noise_of_the_honest_survivors_and_the_server_is_what_is_charged"


# --- noise of devices -------------------------------------------------------------------------------------------------


@caught_by("unit/privacy/test_device_noise.py", CHARGED, guards="accounting")
def colluding_devices_are_counted_on():
    """The share of a device is for all survivors, those who may collude among them."""
    from sottovoce_evidence.device_noise import DeviceNoise

    DeviceNoise.honest = property(lambda self: self.survivors)


@caught_by(
    "unit/privacy/test_device_noise.py",
    "test_shares_of_honest_devices_have_the_declared_variance_as_they_are_drawn",
    guards="noise",
)
def shares_that_divide_the_deviation():
    """The standard deviation is divided among devices, where it is the variance that adds up."""
    from sottovoce_evidence.device_noise import DeviceNoise

    DeviceNoise.share = property(lambda self: self.noise_multiplier / self.honest)


@caught_by("unit/privacy/test_device_noise.py", CHARGED, guards="accounting")
def the_noise_of_all_survivors_is_charged():
    """Those who collude know their own noise: the ε against the server is too small."""
    from sottovoce_evidence.accounting import SampledGaussian
    from sottovoce_evidence.device_noise import DeviceNoise

    def against_server(self):
        charged = self.multiplier(self.noise_multiplier, self.survivors)
        return [(SampledGaussian(charged, "poisson", 1.0), self.participations)]

    DeviceNoise.against_server = property(against_server)


@caught_by(
    "unit/privacy/test_device_noise.py", "test_a_share_of_fewer_steps_than_the_proof_needs_is_refused", guards="noise"
)
def shares_of_any_size():
    """Rounded Gaussians of few steps do not add up to one Gaussian."""
    from sottovoce_evidence.device_noise import DeviceNoise

    DeviceNoise.check = lambda self, noise_multiplier: None


@caught_by(
    "unit/privacy/test_device_noise.py",
    "test_what_is_released_is_a_function_of_a_sum_that_is_known_up_to_its_modulus",
    guards="masks",
)
def a_sum_that_shows_where_it_wrapped_round():
    """The server adds its noise to a sum that is reduced, and not again: a device can make the reader see the end."""
    from sottovoce_evidence.mechanism import Mechanism

    real = Mechanism.across_devices
    Mechanism.across_devices = lambda self, modulus=0: real(self, None if modulus is None else 0)


@caught_by(
    "unit/privacy/test_device_noise.py", "test_a_device_lets_a_user_join_as_often_as_is_charged", guards="accounting"
)
def a_device_that_never_stops():
    """Nothing bounds how many rounds a user joins, and ε against the server is for fewer."""
    from sottovoce.privacy.mechanism import Mechanism

    Mechanism.joining = lambda self, rounds: self.sampler.participation(rounds)


@caught_by(
    "equivalence/test_device_noise.py",
    "test_a_device_works_out_itself_what_holds_against_the_server",
    guards="accounting",
)
def any_noise_that_the_server_likes():
    """A device does not ask what its noise comes to against the server."""
    from sottovoce.federation import device

    device._against_server = lambda mechanism, earlier: 0.0


@caught_by("unit/privacy/test_device_noise.py", "test_the_server_tops_up_to_the_noise_of_the_model", guards="noise")
def a_server_that_adds_nothing():
    """The model has the noise of the devices alone."""
    from sottovoce_evidence.device_noise import DeviceNoise

    real = DeviceNoise.multiplier
    DeviceNoise.multiplier = lambda self, z, devices: real(self, z, devices) if devices else 0.0


@caught_by(
    "unit/privacy/test_device_noise.py",
    "test_the_server_is_charged_every_round_of_a_user_without_sampling",
    guards="accounting",
)
def sampling_that_hides_from_the_server():
    """ε against the server is amplified by coins that it sees."""
    from dataclasses import replace

    from sottovoce_evidence.device_noise import DeviceNoise

    real = DeviceNoise.against_server.fget
    DeviceNoise.against_server = property(lambda self: [(replace(e, user_rate=0.01), n) for e, n in real(self)])


@caught_by(
    "equivalence/test_device_noise.py", "test_the_server_tells_a_person_no_better_than_is_charged", guards="noise"
)
def half_of_the_noise():
    """Devices draw half of the standard deviation that is charged."""
    from sottovoce.federation import device

    real = device.rounded_gaussian
    device.rounded_gaussian = lambda key, size, std: real(key, size, std / 2)


# --- masked sums ----------------------------------------------------------------------------------------------------

PARTICIPANT, LIES = "unit/federation/masking/test_participant.py", "test_a_server_that_lies_is_refused_with_a_sentence"
UNIFORM = "test_what_the_server_and_the_colluding_see_of_a_device_is_uniform"


@caught_by(PARTICIPANT, "test_of_a_neighbour_that_is_gone_the_mask_key_is_given_and_not_the_self_mask", guards="masks")
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


@caught_by(PARTICIPANT, f"{LIES}[a neighbour's keys are others]", guards="masks")
def keys_of_neighbours_that_nobody_signed():
    """A device believes the keys that the server sends: the server is then all its neighbours."""
    from sottovoce.federation.members import Membership

    Membership.has_signed = lambda self, name, signature, claim: True


@caught_by(PARTICIPANT, f"{LIES}[too few survivors]", guards="masks")
def survivors_as_few_as_the_server_likes():
    """A device signs any set that it is in: the sum over two is the other one's update."""
    from sottovoce.federation.masking.graph import Terms

    Terms.survivors = property(lambda self: 0, lambda self, value: None)


@caught_by(PARTICIPANT, "test_a_server_that_names_two_sets_of_survivors_does_not_open_both", guards="masks")
def a_quorum_of_two():
    """Few signatures are enough: a server that tells devices different survivors opens two sums."""
    from sottovoce.federation.masking import graph

    graph.quorum = lambda count, colluding: 2


@caught_by(PARTICIPANT, "test_a_message_that_is_repeated_gets_the_same_bytes_and_another_is_refused", guards="masks")
def a_phase_that_is_answered_as_often_as_it_is_asked():
    """A device forgets what it answered: it signs a second set of survivors."""
    from sottovoce.federation.masking.participant import Participant

    real = Participant.answer

    def answer(self, request, before_vector):
        self._answers = {}
        return real(self, request, before_vector)

    Participant.answer = answer


@caught_by(PARTICIPANT, UNIFORM, guards="masks")
def masks_of_its_own_alone():
    """A device masks with itself, and not with its neighbours: what opens the sum opens each vector."""
    from sottovoce.federation.masking.masks import Modular

    real = Modular.add_masks
    Modular.add_masks = lambda self, keys, sign=1: real(self, list(keys)[:1] if sign > 0 else (), sign)


@caught_by(PARTICIPANT, "test_keys_that_the_server_made_count_among_those_that_collude", guards="masks")
def devices_that_the_server_can_be():
    """A key that the server made is taken for one that its device made: with enough of them it is everybody else."""
    from sottovoce.federation.members import Membership

    Membership.made_by_server = lambda self, names: []


@caught_by(PARTICIPANT, "test_keys_are_fresh_in_every_round", guards="masks")
def a_mask_key_for_ever():
    """The seed of the mask key is the same in every round: two vectors under one mask show their difference."""
    from sottovoce.federation.masking import masks

    masks.new_seed = lambda: bytes(masks.SEED)


@caught_by("unit/federation/masking/test_masks.py", "test_a_key_that_gives_no_secret_is_refused", guards="masks")
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


@caught_by(
    "unit/federation/aggregation/test_masked.py",
    "test_a_user_moves_a_spoiled_sum_by_no_more_than_their_contribution",
    guards="masks",
)
def a_sum_that_turns_into_its_opposite():
    """At the end of its range, where a hostile device brought it, one honest user more changes all of it."""
    from sottovoce.federation.masking import masks

    masks.folded = lambda numbers, width: numbers


@caught_by("unit/federation/masking/test_graph.py", "test_both_secrets_of_a_device_can_never_be_opened", guards="masks")
def a_threshold_without_those_that_collude():
    """More than half of the neighbours open a secret; with some that collude, that is enough for both."""
    from sottovoce.federation.masking import graph

    graph.threshold = lambda degree, colluding: degree // 2 + 1


@caught_by(
    "unit/federation/masking/test_context.py",
    "test_a_round_is_named_by_its_federation_run_round_and_task",
    guards="masks",
)
def a_round_without_its_task():
    """Devices that were sent different models are in one round: the server tells them apart in the sum."""
    from dataclasses import replace

    from sottovoce.federation.masking import context

    real = context.context_of
    context.context_of = lambda task, task_digest: real(replace(task), "")


@caught_by(
    "unit/federation/test_limits.py", "test_a_masked_vector_of_a_round_leaves_once_also_after_a_restart", guards="masks"
)
def a_vector_that_leaves_again_after_a_crash():
    """That a masked vector left is in memory alone."""
    from sottovoce.federation.limits import Participation

    def note(self, which, list_digest):
        self.refuse_masked(which)
        self._masked.add(which)

    Participation.note_masked = note


@caught_by("equivalence/test_device_neighbours.py", f"{OTHERS}[masked, min_separation, silo, removed]", guards="masks")
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


@caught_by(
    "unit/federation/aggregation/test_masked.py",
    "test_fewer_than_declared_are_not_unmasked_and_the_round_is_only_noise",
    guards="masks",
)
def a_sum_over_whoever_is_left():
    """The server goes on with fewer devices than are declared."""
    from sottovoce.federation.aggregation.masked import MaskedAggregator

    MaskedAggregator._too_few = lambda self, did, devices: not devices


@caught_by(
    "unit/federation/masking/test_vector.py",
    "test_where_devices_add_the_noise_no_exact_count_is_in_the_vector",
    guards="masks",
)
def exact_counts_beside_noise():
    """How many users joined is sent exactly, next to sums with the noise of devices."""
    from sottovoce.federation.masking import vector

    real = vector.Layout
    vector.Layout = lambda shapes, bits, counts: real(shapes, bits, True)


# --- keys and members -----------------------------------------------------------------------------------------------


@caught_by(
    "unit/federation/test_members.py",
    "test_two_lists_have_the_same_fingerprint_only_if_all_of_it_is_the_same",
    guards="keys",
)
def a_fingerprint_of_names_alone():
    """Owners compare who is on the list, and not with which key: the server could have put in its own."""
    import hashlib

    from sottovoce.federation.members import Members

    Members.fingerprint = property(
        lambda self: "SHA256:" + hashlib.sha256(repr(sorted(self.devices)).encode()).hexdigest()
    )


@caught_by(
    "test_adversaries.py", "test_a_masked_sum_without_noise_is_no_differential_privacy", EVIDENCE, guards="verify"
)
def an_epsilon_against_a_server_that_sees_sums_without_noise():
    """The ε of the released model is stated against everybody."""
    from sottovoce_evidence import adversaries

    real = adversaries.Adversary
    adversaries.Adversary = lambda who, sees, epsilon: real(who, sees, 1.5)


# --- noise -----------------------------------------------------------------------------------------------------------


@caught_by("statistical/test_noise.py", "test_noise_through_the_whole_loop_has_the_declared_scale", guards="noise")
def half_the_noise():
    """Noise at half its scale."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.noise_std
    Mechanism.noise_std = lambda *args: (real(*args)[0] / 2, real(*args)[1])


@caught_by("statistical/test_noise.py", "test_an_empty_cohort_gets_the_same_noise", guards="noise")
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


@caught_by("statistical/test_noise.py", "test_noise_never_repeats", guards="noise")
def one_key_for_every_round():
    """Every round draws the same noise."""
    from sottovoce.privacy import mechanism

    real = mechanism.rounded_gaussian
    mechanism.rounded_gaussian = lambda key, *rest: real(bytes(32), *rest)


@caught_by("statistical/test_noise.py", "test_every_bit_of_a_noise_key_counts", guards="keys")
def short_noise_keys():
    """A noise key of 64 bits."""
    from sottovoce.privacy import noise

    real = noise.rounded_gaussian
    noise.rounded_gaussian = lambda key, *rest: real(key[:8] + bytes(24), *rest)


@caught_by(
    "statistical/test_release_bits.py", "test_no_statistic_tells_more_of_a_release_than_epsilon_allows", guards="noise"
)
def noise_in_floating_point():
    """Float32 noise, added in float64 and rounded to float32, as most libraries do."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from sottovoce.privacy import mechanism

    def with_noise(part, scale, key, number, *rest):
        draw, std = np.random.default_rng([*key, number]).standard_normal, np.float32(scale.std)

        def add(leaf):
            return jnp.asarray(np.float32(leaf + np.float64(std * draw(np.shape(leaf), np.float32))))

        return jax.tree.map(add, part), ()

    mechanism._noised = with_noise


@caught_by(
    "unit/privacy/test_mechanism.py", "test_what_is_released_is_a_function_of_a_sum_of_whole_numbers", guards="noise"
)
def a_step_of_the_data():
    """The grid follows the largest number of the estimate, which is private."""
    import jax
    import numpy as np

    from sottovoce.privacy import mechanism

    real = mechanism._noised

    def with_noise(part, scale, *rest):
        largest = max(float(np.abs(leaf).max(initial=0)) for leaf in jax.tree.leaves(part))
        return real(part, scale._replace(step=largest * 2.0**-26 or scale.step), *rest)

    mechanism._noised = with_noise


@caught_by(
    "unit/privacy/test_mechanism.py", "test_what_is_released_is_a_function_of_a_sum_of_whole_numbers", guards="noise"
)
def rounding_that_is_not_paid_for():
    """An average is rounded to the grid, and the noise is as if it were not."""
    from sottovoce.privacy import mechanism

    real = mechanism._noised
    mechanism._noised = lambda part, scale, *rest: real(part, scale._replace(std=scale.std * (1 - 2.0**-19)), *rest)


@caught_by("unit/privacy/test_noise.py", "test_decisions_that_are_close_are_left_to_more_bits", guards="noise")
def doubtful_roundings_are_taken():
    """A rounding that further bits could change is called settled."""
    import jax.numpy as jnp

    from sottovoce.privacy import noise

    real = noise._rounded
    noise._rounded = lambda *args: (real(*args)[0], jnp.full_like(real(*args)[1], True))


@caught_by("unit/privacy/test_rng.py", "test_chacha20_is_the_cipher_of_rfc_8439", guards="keys")
def chacha8():
    """A cipher of fewer rounds."""
    import randomgen

    real = randomgen.ChaCha
    randomgen.ChaCha = lambda key, rounds: real(key=key, rounds=8)


@caught_by("unit/privacy/test_mechanism.py", "test_noise_follows_the_clip_norm_at_constant_cost", guards="noise")
def noise_of_the_first_round():
    """Noise that does not follow the clip norm."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.noise_std
    Mechanism.noise_std = lambda self, number, clip_norms: real(self, 1, self.clip_norms(1, self.start()))


# --- commits ---------------------------------------------------------------------------------------------------------

KILLS, COPIES = "end_to_end/test_kills.py", "end_to_end/test_copies.py"


SOME, ALL = "test_killed_at_some_moments[independent-7]", "test_killed_before_every_change_of_a_file[independent]"


SEEDED = "test_a_seeded_run_ends_in_the_bits_of_one_that_was_never_interrupted[blt]"


FORKED = "test_a_process_that_is_forked_before_the_sum_gives_two_noises"


ONE_COMMITS = "test_of_two_processes_that_train_one_run_one_commits"


@caught_by(KILLS, SOME, guards="checkpoint")
def an_observer_that_is_told_before_the_commit():
    """Whoever watches a run hears of rounds that a crash takes away, and that come again with other noise."""
    from sottovoce.commands.train import Training

    run, checkpoint = Training.run, Training._checkpoint

    def watched(self, observers, stop):
        self.told = observers
        return run(self, observers, stop)

    def told(self, last):
        for one in self._played:
            self.told(one.progress)
        checkpoint(self, last)

    Training.run, Training._checkpoint = watched, told


@caught_by(KILLS, ALL, guards="ledger")
def lines_after_the_name():
    """The lines of rounds are written when their checkpoint has its name."""
    from sottovoce.runs import checkpoint
    from sottovoce.runs.ledger import Ledger

    spend, name, late = Ledger.spend, checkpoint.give_name, []

    def give_name(folder, commit):
        name(folder, commit)
        while late:
            spend(*late.pop())

    Ledger.spend = lambda self, events, first: late.append((self, list(events), first))
    checkpoint.give_name = give_name


@caught_by(KILLS, ALL, guards="checkpoint")
def a_draft_that_is_not_flushed():
    """A checkpoint is committed whose contents a power cut takes away."""
    from sottovoce.runs import checkpoint

    checkpoint.write_aside = lambda path, contents: path.write_bytes(contents)


@caught_by(KILLS, "test_killed_and_then_without_power[independent]", guards="ledger")
def lines_that_a_killed_process_did_not_flush():
    """What a process wrote and had not flushed is taken for committed by the next one."""
    from sottovoce.runs import hash_chain, ledger

    hash_chain.sync_file = ledger.sync_file = lambda path: None


@caught_by(
    "unit/runs/test_hash_chain.py",
    "test_a_file_whose_name_a_killed_process_did_not_flush_outlasts_a_power_cut_once_it_was_read",
    guards="ledger",
)
def names_that_a_killed_process_did_not_flush():
    """A new ledger, or a device's record, that a killed process left may be lost with all that follows."""
    from sottovoce.runs import hash_chain

    hash_chain.sync_folder = lambda folder: None


@caught_by(KILLS, SOME, guards="ledger")
def a_store_that_hears_of_no_commit():
    """A checkpoint has its name, and the ledger of the store has no line of it."""
    from sottovoce.runs.ledger import StoreLedger

    real = StoreLedger.commit
    StoreLedger.commit = lambda self, run, commit, parent, first: (
        first() if commit.round else real(self, run, commit, parent, first)
    )


@caught_by(KILLS, SOME, guards="ledger")
def people_who_are_not_charged():
    """A run trains, and its store was charged for no round."""
    from sottovoce.runs.ledger import StoreLedger

    StoreLedger.charge = lambda *_: None


@caught_by(KILLS, SOME, guards="sampling")
def another_stretch_after_a_crash():
    """A stretch that is done again draws other users: a crash that follows from who was drawn goes away."""
    from sottovoce.runs.secrets import Secrets

    real = Secrets.of
    Secrets.of = staticmethod(lambda *given, **seeded: real(*given, **seeded).next())


@caught_by(COPIES, f"{ONE_COMMITS}[a copy]", guards="ledger")
def any_parent():
    """A process that did not see the last commit commits all the same."""
    from sottovoce.runs import ledger

    ledger._check_parent = lambda *_: None


@caught_by(COPIES, "test_of_two_copies_one_goes_on_and_the_other_is_told_the_way", guards="checkpoint")
def a_copy_that_goes_on():
    """A copy of a run that went on elsewhere goes on from what it has."""
    from sottovoce.runs import checkpoint, ledger

    checkpoint.open_committed = lambda run, commits: checkpoint.newest(run.checkpoints)
    ledger._check_parent = lambda *_: None


@caught_by(COPIES, "test_a_draft_of_another_process_never_gets_the_name_of_a_committed_checkpoint", guards="checkpoint")
def drafts_of_one_name():
    """Two processes write their drafts into one file."""
    from sottovoce.runs import checkpoint

    checkpoint._draft = lambda folder, commit: folder / f"round-{commit.round:08d}.draft"


@caught_by(COPIES, FORKED, guards="keys")
def a_noise_key_that_is_drawn_ahead():
    """The key of the noise is known before the sum: a process that is forked gives two sums one noise."""
    from sottovoce.runs.payments import Payments, RoundPayment

    begin, charge, keys = Payments.begin, RoundPayment.charge, {}

    def ahead(self, number):
        keys[number] = self.secrets.noise_key(number)
        return begin(self, number)

    Payments.begin = ahead
    RoundPayment.charge = lambda self, event: (charge(self, event), keys[self.round])[1]


# --- correlated noise ------------------------------------------------------------------------------------------------

CORRELATED = "end_to_end/test_correlated_runs.py"
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


@caught_by(KILLS, SEEDED, guards="checkpoint")
def noise_that_forgets_at_resume():
    """The state of the noise is zero after a resume, as before the first round."""
    from sottovoce.training.server import ServerState

    ServerState.with_noise = lambda self, arrays: self


@caught_by(
    "accounting/test_matrices.py", "test_the_sensitivity_is_that_of_the_worst_pattern", EVIDENCE, guards="accounting"
)
def a_separation_of_one_round_more():
    """The sensitivity of a strategy matrix is for users who join one round less often."""
    from dataclasses import replace

    from sottovoce_evidence.accounting import matrices

    real = matrices.StrategyMatrix.sensitivity
    matrices.StrategyMatrix.sensitivity = lambda self, allowed: real(
        self, replace(allowed, min_separation=allowed.min_separation + 1)
    )


@caught_by("equivalence/test_correlated_neighbours.py", WHOLE_RUN, guards="accounting")
def sensitivity_of_one_participation():
    """The noise of a run hides a user who joins once."""
    from sottovoce_evidence.accounting.matrices import Participation

    Participation.most = property(lambda self: 1)


@caught_by("statistical/test_correlated_noise.py", f"{COVARIANCE}[blt]", guards="noise")
def noise_without_the_sensitivity_of_the_run():
    """z is taken over what one user moves one round, not the run."""
    from sottovoce.privacy.mechanism import Mechanism

    Mechanism.run_sensitivity = 1.0


@caught_by("unit/privacy/test_noise_stream.py", MEANS, guards="noise")
def rounding_of_streams_that_is_not_paid_for():
    """Products in a stream are rounded, and the sensitivity is as if they were not."""
    from sottovoce.privacy.noise_stream import BltStream

    BltStream.rounding = 0.0


@caught_by(
    "accounting/test_events.py",
    "test_a_run_of_correlated_noise_is_one_gaussian_for_one_user_added_or_removed",
    EVIDENCE,
    guards="accounting",
)
def added_or_removed_shown_for_replaced():
    """The ε of one user replaced is that of one user added or removed."""
    from sottovoce_evidence import accounting
    from sottovoce_evidence.accounting.events import CorrelatedGaussian

    real = accounting.composition_of

    def composition_of(counts, accountant, replaced=False):
        return real(counts, accountant, replaced and not any(isinstance(event, CorrelatedGaussian) for event in counts))

    accounting.composition_of = composition_of


@caught_by(COPIES, "test_the_state_of_correlated_noise_lies_with_the_secrets_alone", guards="checkpoint")
def noise_state_in_the_checkpoint():
    """What the noise remembers lies in a checkpoint."""
    from dataclasses import replace

    from sottovoce.runs.payments import Payments

    real = Payments.commit

    def commit(self, checkpoint, noise=None):
        hidden = {f"noise {name}": values for name, values in (noise or {}).items()}
        real(self, replace(checkpoint, arrays={**checkpoint.arrays, **hidden}), noise)

    Payments.commit = commit


@caught_by(CORRELATED, "test_no_round_beyond_the_planned_ones_is_noised_or_charged", guards="noise")
def noise_beyond_the_planned_rounds():
    """A run may go on after the rounds that its sensitivity is for."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.add_noise
    Mechanism.add_noise = lambda self, estimate, noise, number, *rest: real(
        self, estimate, noise, min(number, self.participation.rounds), *rest
    )


# --- sampling --------------------------------------------------------------------------------------------------------


@caught_by("statistical/test_sampling.py", "test_users_join_independently_of_one_another", guards="sampling")
def poisson_that_is_fixed_size():
    """The same number of users every round."""
    from sottovoce.privacy.rng import philox
    from sottovoce.privacy.sampling import Poisson

    def sample(self, people, key, round_number=0):
        return philox(key).choice(len(people), size=round(self.user_rate * len(people)), replace=False)

    Poisson.sample = sample


@caught_by("statistical/test_sampling.py", "test_a_user_added_at_the_end_changes_nobody_elses_coin", guards="sampling")
def coins_that_know_the_population():
    """A coin that depends on who else is there."""
    from sottovoce.privacy.sampling import Poisson

    real = Poisson.sample
    Poisson.sample = lambda self, people, key, number=0: real(self, people, bytes([len(people) % 256]) + key[1:])


@caught_by(
    "statistical/test_sampling.py", "test_users_join_rounds_as_often_as_the_ledger_is_charged_for", guards="sampling"
)
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


@caught_by("unit/privacy/test_sampling.py", "test_nobody_joins_more_often_than_is_charged", guards="sampling")
def groups_counted_in_the_store():
    """A store of fewer people than declared has its turns more often."""
    import numpy as np

    from sottovoce.privacy.sampling import InTurn

    def sample(self, people, key, number):
        groups = max(1, len(people) // self.cohort)
        return np.flatnonzero(self.group_of(people.names) % np.uint64(groups) == number % groups)

    InTurn.sample = sample


_SEPARATION = "test_nobody_joins_within_the_separation_or_more_often_than_allowed"


@caught_by("unit/privacy/test_sampling.py", _SEPARATION, guards="sampling")
def a_separation_of_one_round_less():
    """Users come back one round too early."""
    from dataclasses import replace

    from sottovoce.privacy.sampling import MinSeparation

    real = MinSeparation.rounds_of

    def rounds_of(self, names, rounds):
        return real(replace(self, min_separation=max(self.min_separation - 1, 1)), names, rounds)

    MinSeparation.rounds_of = rounds_of


@caught_by(
    "equivalence/test_neighbouring_people.py", "test_in_turn_one_person_moves_their_own_rounds_alone", guards="sampling"
)
def rounds_by_the_row():
    """When a user joins follows from the place in the store, not from the name."""
    import numpy as np

    from sottovoce.privacy.sampling import MinSeparation

    class Rows:
        def __init__(self, people):
            self.names = np.arange(len(people), dtype=np.uint64)

    real = MinSeparation.sample
    MinSeparation.sample = lambda self, people, key, number=0: real(self, Rows(people), key, number)


@caught_by(
    "unit/privacy/test_sampling.py",
    "test_the_rounds_of_a_ledger_add_up_to_the_most_turns_of_anybody",
    guards="accounting",
)
def separated_users_charged_once():
    """Users who join at irregular times are charged for one round, however many they join."""
    from sottovoce.privacy.sampling import MinSeparation

    MinSeparation.participations = lambda self, rounds: 1


@caught_by("unit/privacy/test_mechanism.py", "test_the_sampler_chooses_what_is_charged", guards="accounting")
def fixed_size_charged_as_poisson():
    """Fixed-size cohorts charged as Poisson."""
    from sottovoce.privacy.sampling import FixedSize
    from sottovoce_evidence.accounting import SampledGaussian

    FixedSize.event = lambda self, z: SampledGaussian(z, "poisson", self.user_rate)


@caught_by(
    "statistical/test_sampling.py",
    "test_where_users_are_missing_places_are_empty_and_nobody_joins_more_often_than_is_charged",
    guards="sampling",
)
def no_empty_places():
    """A fixed number is drawn from those who are there, fewer than declared, and charged as if from all declared."""
    from sottovoce.privacy.rng import philox
    from sottovoce.privacy.sampling import FixedSize

    def sample(self, people, key, round_number=0):
        return philox(key).choice(len(people), size=min(self.cohort, len(people)), replace=False)

    FixedSize.sample = sample


# --- clipping and weights --------------------------------------------------------------------------------------------


@caught_by("unit/local/test_update.py", "test_no_update_is_longer_than_the_clip_norm", guards="clip")
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


@caught_by("unit/local/test_update.py", "test_no_update_is_longer_than_the_clip_norm", guards="clip")
def whole_norm_for_every_layer():
    """Every layer may be as long as the whole."""
    from sottovoce.privacy.clipping import PerLayerClip

    PerLayerClip.even = staticmethod(lambda norm, layers, weighted=False: PerLayerClip((norm,) * layers, weighted))


@caught_by("unit/privacy/test_clipping.py", "test_a_layer_of_several_arrays_is_clipped_as_one", guards="clip")
def half_of_an_adapter_clipped():
    """Of the two arrays of an adapter, the first alone is clipped."""
    from sottovoce.privacy.clipping import PerLayerClip, project

    def shorten(self, part, bound):
        first, cut = project(part[:1], bound)
        return [*first, *part[1:]], cut

    PerLayerClip.shorten = shorten


@caught_by("unit/privacy/test_clipping.py", "test_a_clipped_update_is_never_longer_than_the_clip_norm", guards="clip")
def no_room_for_rounding():
    """Rounding lets an update through."""
    from sottovoce.privacy import clipping

    clipping.SAFE_SHARE = 1 + 1e-6


@caught_by(
    "unit/local/test_update.py", "test_a_user_whose_update_is_not_finite_contributes_zero_and_no_weight", guards="clip"
)
def nan_is_summed():
    """Updates that are not finite are summed."""
    import jax.numpy as jnp

    from sottovoce.local import update

    update.finite_or_zero = lambda tree, length: (tree, jnp.ones(()))


@caught_by(
    "equivalence/test_neighbours.py",
    "test_one_user_moves_a_round_by_at_most_the_sensitivity[fedavg, every step-flat-10.0]",
    guards="clip",
)
def weights_above_one():
    """Weights above one."""
    from sottovoce.training import cohort_sum

    cohort_sum.user_weight = lambda tokens, weight_cap: tokens / weight_cap


@caught_by("unit/privacy/test_fixed_point.py", "test_a_user_cannot_move_a_sum_by_the_rounding_of_others", guards="clip")
def sums_in_floating_point():
    """Updates are added in float32, and rounded on the way."""
    from sottovoce.privacy.mechanism import Mechanism

    Mechanism.grid = lambda self, clip_norms: None


# --- estimators ------------------------------------------------------------------------------------------------------


@caught_by("unit/build/test_assembly.py", DECLARED, guards="denominator")
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


@caught_by(
    "unit/privacy/test_estimators.py", "test_the_fixed_denominator_does_not_look_at_the_cohort", guards="denominator"
)
def denominator_of_the_cohort():
    """The realised cohort as denominator."""
    import jax
    import jax.numpy as jnp

    from sottovoce.privacy.estimators import FixedDenominator

    FixedDenominator.estimate = lambda self, total, weight: jax.tree.map(
        lambda leaf: leaf / jnp.maximum(weight, 1), total
    )


@caught_by(
    "unit/privacy/test_estimators.py",
    "test_the_sensitivity_of_the_clipped_denominator_is_attained",
    guards="denominator",
)
def clipped_denominator_like_the_fixed_one():
    """Half the sensitivity of the clipped denominator."""
    from sottovoce.privacy.estimators import ClippedDenominator

    ClippedDenominator.sensitivity = lambda self, norm_bound: norm_bound / (1 + self.least_weight)


# --- adaptive clipping and schedules ---------------------------------------------------------------------------------


@caught_by("unit/privacy/test_adaptive.py", "test_update_and_bits_together_are_charged_z", guards="accounting")
def free_bits():
    """The adaptive bit is not paid for."""
    from sottovoce_evidence.adaptive import QuantileTracking

    QuantileTracking.update_multiplier = lambda self, z, parts: z


@caught_by("unit/training/test_round.py", FOLLOWS, guards="noise")
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


@caught_by("unit/training/test_round.py", FOLLOWS, guards="clip")
def users_clip_to_the_first_norm():
    """Users clip to the norm of round 1, while the noise is that of the present one."""
    from sottovoce.training.cohort_sum import SumInBlocks

    real, first = SumInBlocks.__call__, []

    def call(self, algorithm, task, store):
        first.append(task.clip_norms)
        return real(self, algorithm, task._replace(clip_norms=first[0]), store)

    SumInBlocks.__call__ = call


@caught_by("unit/privacy/test_mechanism.py", "test_a_noise_that_changes_is_charged_round_by_round", guards="accounting")
def first_noise_charged():
    """A changing noise charged as its first."""
    from sottovoce.privacy.mechanism import Mechanism

    Mechanism.events = lambda self, rounds: [(self.event(1), rounds)]


# --- ledger, resume, secrets -----------------------------------------------------------------------------------------


@caught_by("equivalence/test_neighbours.py", "test_nothing_else_of_a_round_depends_on_a_user", guards="ledger")
def paid_for_afterwards():
    """Noise is drawn before it is paid for."""
    from sottovoce.privacy.mechanism import Mechanism

    real_query, real_add_noise = Mechanism.estimate, Mechanism.add_noise

    def query(self, *sums):
        asked = real_query(self, *sums)
        real_add_noise(self, asked, (), 1, self.clip_norms(1, self.start()), bytes(32))
        return asked

    Mechanism.estimate = query


@caught_by("unit/runs/test_payments.py", "test_where_the_owner_stops_the_keys_of_the_stretch_stay", guards="sampling")
def a_stop_that_draws_anew():
    """Ctrl-C in time: the next try of a round that crashed has another cohort."""
    from sottovoce.runs.payments import Payments

    real = Payments.commit
    Payments.commit = lambda self, checkpoint, noise=None, declared=True: real(self, checkpoint, noise)


@caught_by(
    "unit/runs/test_secrets.py", "test_a_noise_key_is_given_once_and_follows_from_nothing_that_is_kept", guards="keys"
)
def noise_key_reused_after_resume():
    """A round done again with the noise it had."""
    from sottovoce.runs.secrets import Secrets

    Secrets.noise_key = lambda self, number: self.keys(number + 1000).local


@caught_by(COPIES, "test_keys_of_noise_are_never_on_disk_and_old_keys_are_erased", guards="keys")
def keys_that_are_kept():
    """The keys of earlier stretches stay: a stolen folder reveals all cohorts."""
    from sottovoce.runs.secrets import Secrets

    Secrets.forget = staticmethod(lambda *_: None)


@caught_by("unit/runs/test_checkpoint.py", "test_one_that_was_cut_or_changed_is_refused", guards="checkpoint")
def any_checkpoint_will_do():
    """A run goes on from a checkpoint that it did not make."""
    from sottovoce.runs import checkpoint

    checkpoint.open_committed = lambda run, commits: checkpoint.newest(run.checkpoints)


@caught_by("unit/runs/test_hash_chain.py", "test_a_last_line_without_its_newline_counts[store]", guards="ledger")
def a_newline_makes_a_charge():
    """A last line that lacks its newline counts as torn, whole as it is."""
    from sottovoce.runs.hash_chain import Chain

    Chain._is_whole = lambda self, last: False


@caught_by(
    "unit/runs/test_hash_chain.py", "test_no_accident_lowers_what_was_spent_unseen[store-moves]", guards="ledger"
)
def checksums_nobody_looks_at():
    """Lines are written with checksums, and read without."""
    from sottovoce.runs import hash_chain

    real = hash_chain.Chain._take

    def take(self, raw):
        found = hash_chain._CHECKED.fullmatch(raw)
        return real(self, found[1] + b"}" if found else raw)

    hash_chain.Chain._take, hash_chain._read_head = take, lambda path: ""


@caught_by("unit/runs/test_ledger.py", "test_what_is_spent_is_on_disk_before_spend_returns", guards="ledger")
def ledger_not_flushed():
    """The ledger is written after a while."""
    from sottovoce.runs import hash_chain

    def append(path, contents, *, private=False):
        with open(path, "ab") as file:
            file.write(contents)

    hash_chain.append_synced = append


@caught_by(KILLS, SOME, guards="ledger")
def a_charge_before_the_name():
    """People pay for a run whose folder has no name yet: a power cut, or another run of that name, and it never was."""
    from sottovoce.commands import new_run

    named = "        check_room(draft)\n"
    write_otherwise(new_run, "begin", named, named + "        _pay(draft, store, assembly, '')\n")


@caught_by("unit/runs/test_secrets.py", "test_fresh_secrets_differ_and_owe_nothing_to_the_seed", guards="keys")
def secrets_from_the_seed():
    """Secrets from the seed of the experiment."""
    from sottovoce.runs.secrets import Secrets

    Secrets.fresh = staticmethod(lambda: Secrets.seeded(0))


@caught_by(
    "end_to_end/test_paying.py", "test_no_cohort_is_drawn_beyond_the_plan_or_the_budget[budget]", guards="ledger"
)
def hard_stop_one_round_late():
    """One round beyond the budget."""
    from sottovoce.runs.budget import Budget

    real = Budget.rounds_allowed
    Budget.rounds_allowed = lambda self, *rest: real(self, *rest) + 1


@caught_by(
    "end_to_end/test_paying.py",
    "test_text_that_was_changed_in_place_is_not_released_under_the_noise_of_before",
    guards="keys",
)
def store_known_by_its_place():
    """The noise of a round does not follow what people wrote."""
    from sottovoce.data.store import Store

    Store.fingerprint = property(lambda self: str(self.path))


@caught_by("end_to_end/test_paying.py", "test_the_public_record_holds_nothing_exact_about_the_cohort", guards="people")
def cohort_size_in_the_record():
    """The size of the cohort in the public record."""
    from sottovoce.runs.record import Lines

    real = Lines.append
    Lines.append = lambda self, entry: real(self, {"users": 7, **entry})


# --- tokens ----------------------------------------------------------------------------------------------------------


@caught_by("unit/commands/test_tokenizer.py", "test_text_of_people_is_refused", guards="people")
def tokenizer_of_people():
    """A tokenizer learns from people's text, and its pieces are a release that nobody charged."""
    from pathlib import Path

    from sottovoce.commands import tokenizer

    tokenizer._public_files = lambda text: [Path(path) for path in text]


# --- accounting ------------------------------------------------------------------------------------------------------


@caught_by(
    "accounting/test_pld.py",
    "test_many_rounds_of_fixed_size_lie_between_what_is_attained_and_renyi",
    EVIDENCE,
    guards="accounting",
)
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
    "accounting/test_epsilon.py",
    "test_a_poisson_round_beside_fixed_ones_is_charged_for_replacing_a_user",
    EVIDENCE,
    guards="accounting",
)
def poisson_rounds_keep_their_relation():
    """Poisson rounds beside cohorts of fixed size charged for removing a user, in a total for replacing one."""
    from sottovoce_evidence.accounting import pld

    pld.REPLACED = pld.REMOVED


@caught_by(
    "accounting/test_composition.py",
    "test_a_histogram_is_a_gaussian_over_everyone_and_a_share_of_delta",
    EVIDENCE,
    guards="accounting",
)
def threshold_for_free():
    """The chance that a threshold fails is not taken from δ."""
    from sottovoce_evidence.accounting import events

    events.GaussianRelease.__getattribute__ = lambda self, name: (
        0.0 if name == "giveaway" else object.__getattribute__(self, name)
    )


@caught_by(
    "unit/data/test_prepare.py",
    "test_a_person_who_leaves_with_all_their_records_changes_nobody_elses_text",
    guards="people",
)
def a_shared_record_counts_for_its_first_owner():
    """A record of two people is in the text of one: without the other, it would not be there."""
    from sottovoce.data.blocks import OwnedTexts

    real = OwnedTexts.of
    OwnedTexts.of = staticmethod(lambda found, most: real(((owners[:1], text) for owners, text in found), most))


@caught_by("unit/data/test_private_vocabulary.py", "test_one_user_more_changes_few_counts_by_one", guards="accounting")
def as_many_words_as_one_likes():
    """A user's share in a private vocabulary is not bounded."""
    from sottovoce.data import private_vocabulary

    real = private_vocabulary._words_of
    private_vocabulary._words_of = lambda name, tokens, limit: real(name, tokens, 10**9)


@caught_by("statistical/test_thresholds.py", "test_the_noise_of_a_histogram_has_the_declared_scale", guards="noise")
def half_the_noise_of_a_histogram():
    """Counts of words with half their noise."""
    from sottovoce.privacy.histogram import NoisyHistogram

    real = NoisyHistogram.noise_std.fget
    NoisyHistogram.noise_std = property(lambda self: real(self) / 2)


@caught_by("unit/runs/test_ledger.py", "test_an_unknown_event_is_refused_not_ignored", guards="ledger")
def unknown_events_skipped():
    """An unknown event is skipped."""
    from sottovoce.runs import ledger
    from sottovoce_evidence.errors import SottoError

    real = ledger.Event.from_json

    def lenient(data):
        try:
            return real(data)
        except SottoError:
            return real({"kind": "sampled-gaussian", "noise_multiplier": 9.0, "sampling": "poisson", "user_rate": 0.1})

    ledger.Event.from_json = lenient


# --- several processes -----------------------------------------------------------------------------------------------

SHARED = "unit/multiprocess/test_cohort_sum.py"


@caught_by(SHARED, "test_any_number_of_processes_give_the_sum_of_one_to_the_bit[many-2]", guards="sampling")
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


@caught_by(SHARED, "test_the_keys_of_sampling_and_noise_stay_with_process_0", guards="keys")
def noise_key_told_to_helpers():
    """The users' own randomness is keyed with the key of the noise, which so leaves process 0."""
    from sottovoce.runs.secrets import Secrets

    Secrets.noise_key = lambda self, number: self.keys(number).local


RENDEZVOUS = "unit/multiprocess/test_rendezvous.py"


@caught_by(RENDEZVOUS, "test_strangers_at_the_port_are_named_and_process_0_goes_on_waiting[who guesses]", guards="keys")
def strangers_let_in():
    """A process is let in whatever it shows of the secret."""
    import hmac
    from types import SimpleNamespace

    from sottovoce.multiprocess import rendezvous

    rendezvous.hmac = SimpleNamespace(digest=hmac.digest, compare_digest=lambda one, other: True)


LINKS = "unit/multiprocess/test_links.py"


@caught_by(LINKS, "test_an_end_with_another_certificate_is_sent_nothing", guards="keys")
def any_certificate_is_taken():
    """Whoever speaks TLS between two processes reads the sums."""
    import hmac
    from types import SimpleNamespace

    from sottovoce.multiprocess import links

    links.hmac = SimpleNamespace(digest=hmac.digest, compare_digest=lambda one, other: True)


# --- models ----------------------------------------------------------------------------------------------------------


@caught_by(
    "unit/commands/test_initial_model.py",
    "test_a_private_run_needs_the_owners_word_on_a_folder_of_hugging_face",
    guards="people",
)
def weights_of_unknown_origin():
    """A private run starts from downloaded weights although nobody said that their text was public."""
    from sottovoce.commands import initial_model

    real = initial_model._facts_of

    def declared(source, recipe, store, *, again):
        return real(source, recipe.replace(model={"initial_is_public": True}), store, again=again)

    initial_model._facts_of = declared


# --- files -----------------------------------------------------------------------------------------------------------


@caught_by("unit/data/test_corpus.py", "test_no_error_repeats_what_people_wrote", guards="people")
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


@caught_by("unit/reporting/test_findings.py", "test_attacks_on_people_stay_out_of_what_is_public", guards="people")
def a_page_that_tells():
    """Attacks on people's text on a page that anybody may read."""
    from sottovoce.reporting import report

    report.public = list


# --- sampled examples -------------------------------------------------------------------------------------------------

MOVED = "test_a_user_moves_a_round_by_their_examples_that_it_draws[fixed]"


@caught_by(
    "statistical/test_sampling.py", "test_a_user_joins_with_a_binomial_number_of_examples[0.15-4]", guards="sampling"
)
def as_many_examples_as_a_user_has():
    """The number of a user's examples is not bounded: each user brings as many as the cap holds."""
    from sottovoce.data import examples
    from sottovoce.training.variants import example_level

    real = examples.examples_of
    example_level.examples_of = lambda store, length, most: real(store, length, 2 * most)


@caught_by("equivalence/test_example_neighbours.py", MOVED, guards="accounting")
def an_example_charged_as_a_user():
    """A round is charged for one example, as example-level privacy is."""
    from sottovoce.privacy.sampling import Examples
    from sottovoce_evidence.accounting.events import SampledExamples

    Examples.event = lambda self, noise_multiplier: SampledExamples(noise_multiplier, self.example_rate, 1)


@caught_by(
    "statistical/test_sampling.py", "test_a_user_joins_with_a_binomial_number_of_examples[0.15-4]", guards="sampling"
)
def one_coin_for_all_examples_of_a_user():
    """Users are drawn, with all their examples: they join as often on average, and move a round much further."""
    import numpy as np

    from sottovoce.privacy.sampling import Examples, Poisson

    def sample(self, people, key, round_number=0):
        users = Poisson(self.example_rate).sample(range(len(people) // self.examples_per_user), key)
        return np.ravel(users[:, None] * self.examples_per_user + np.arange(self.examples_per_user))

    Examples.sample = sample


@caught_by(
    "accounting/test_mixture.py",
    "test_delta_of_one_round_is_the_integral_of_what_is_likelier",
    EVIDENCE,
    guards="accounting",
)
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


@caught_by(
    "unit/privacy/test_noise.py",
    "test_coordinates_beyond_those_that_are_drawn_together_are_drawn_as_alone",
    guards="noise",
)
def the_same_noise_for_every_part():
    """Each part of the noise that a CPU draws together counts its blocks from 0: the noise repeats."""
    import numpy as np

    from sottovoce.privacy import noise

    real, part = noise.chacha20_by_openssl, noise._BLOCKS_AT_ONCE
    noise.chacha20_by_openssl = lambda key, blocks, nonce: real(key, blocks, nonce)[np.arange(blocks) % part]


@caught_by("unit/privacy/test_chacha.py", "test_openssl_has_the_same_blocks[4097]", guards="noise")
def a_key_stream_that_begins_again():
    """Each piece of the key stream that OpenSSL is asked for begins at block 0: the noise repeats."""
    import numpy as np

    from sottovoce.privacy import chacha

    real, piece = chacha.chacha20_by_openssl, len(chacha._ZEROS) // 64
    chacha.chacha20_by_openssl = lambda key, blocks, nonce: real(key, blocks, nonce)[np.arange(blocks) % piece]


@caught_by("unit/privacy/test_noise.py", "test_all_is_settled_where_no_coordinate_is_in_doubt[5]", guards="noise")
def a_coordinate_that_nobody_settles():
    """The last coordinate of the noise is taken for padding: what is in doubt there is released as it is."""
    from sottovoce.privacy import noise

    real = noise.drawn_from
    noise.drawn_from = lambda key, scale, stream, size: real(key, scale, stream, max(0, size - 1))


@caught_by("unit/privacy/test_chacha.py", "test_the_kernel_makes_the_same_blocks[300]", guards="noise")
def the_same_noise_for_every_tile():
    """Each program of the kernel counts its blocks from those of the first: the noise of a GPU repeats."""
    from sottovoce.privacy import chacha

    real = chacha._by_kernel
    chacha._by_kernel = lambda header, counters, interpret=False: real(header, counters % chacha._TILE, interpret)


# --- private evaluation ----------------------------------------------------------------------------------------------

SCALE = "test_the_noise_is_exact_of_the_scale_that_is_paid_for_and_its_own_for_every_sum"


@caught_by("unit/privacy/test_bounded_sums.py", SCALE, guards="noise")
def half_the_noise_of_an_evaluation():
    """Held-out users pay for twice the noise that they get."""
    from sottovoce.privacy import bounded_sums

    real = bounded_sums.rounded_gaussian
    bounded_sums.rounded_gaussian = lambda key, size, std, stream: real(key, size, std / 2, stream)


@caught_by(
    "unit/commands/test_private_evaluation.py", "test_the_charge_is_on_disk_before_the_noise_is_drawn", guards="ledger"
)
def an_evaluation_charged_when_it_is_done():
    """The noisy sums exist before anybody has paid: a process that is stopped in between has seen them for nothing."""
    from sottovoce.commands import private_evaluation

    real = private_evaluation.pay_and_keep
    private_evaluation.pay_and_keep = lambda file, cost, charge, draw, about: real(
        file, cost, lambda: None, lambda: (draw(), charge())[0], about
    )


# --- choosing among runs ---------------------------------------------------------------------------------------------


@caught_by(
    "accounting/test_selection.py",
    "test_the_bound_holds_for_every_outcome_of_small_mechanisms",
    EVIDENCE,
    guards="accounting",
)
def a_choice_without_its_second_term():
    """Only the mean number of runs is charged: what a run says by being the best is forgotten."""
    import math

    from sottovoce_evidence.accounting import selection

    def cheaper(orders, one, expected_runs, distribution):
        return one + math.log(expected_runs) / (orders - 1)

    selection.best_of = cheaper


@caught_by(
    "unit/commands/test_initial_model.py",
    "test_a_run_from_a_private_run_of_the_same_people_has_the_epsilon_of_both",
    guards="accounting",
)
def a_start_of_the_same_people_that_costs_nothing() -> None:
    """A run starts from a private run on its own people, and its ε is that of its own rounds alone."""
    from sottovoce.commands import new_run

    new_run.charges_of_start = lambda recipe, store: ()


@caught_by(
    "end_to_end/test_correlated_runs.py", "test_no_released_file_follows_exactly_from_who_takes_part", guards="people"
)
def a_public_figure_of_who_takes_part():
    """The ε of the rounds that users joined is in the record, which is released."""
    from sottovoce.runs.folder import RunFolder

    real = RunFolder.save_participation

    def publish(run, figures):
        real(run, figures)
        run.record.append({"round": run.record.read()[-1]["round"], **figures})

    RunFolder.save_participation = publish


VERBS = "test_private_users_are_opened_by_no_verb_and_are_in_none_of_its_files"


@caught_by("unit/commands/test_held_out.py", f"{VERBS}[private]", guards="people")
def private_users_who_are_measured_exactly():
    """Training opens the held-out users of a store, whatever was declared of them."""
    from sottovoce.commands import stores
    from sottovoce.data.store import Store

    stores.held_out_of = lambda folder: Store.open(folder, "test", privately=True)


# --- evidence --------------------------------------------------------------------------------------------------------


@caught_by("test_verify.py", "test_a_release_is_verified[words]", EVIDENCE, guards="verify")
def a_vocabulary_that_the_statement_forgets():
    """The ε of a statement is that of its rounds: what the same people were charged before is left out."""
    from sottovoce_evidence import statement

    write_otherwise(statement, "state", "merged(evidence.charged)", "merged(list(evidence.rounds.items()))")


@caught_by("test_verify.py", "test_a_release_is_verified[poisson]", EVIDENCE, guards="verify")
def an_epsilon_that_is_rounded_down():
    """privacy.json states an ε a little below the one that was proved."""
    from sottovoce_evidence import statement

    statement._rounded = lambda name, value: (
        float(f"{value * (1 - 5e-4):.4g}") if statement.is_epsilon(name) and isinstance(value, float) else value
    )


# --- verifying a release ---------------------------------------------------------------------------------------------


LIE = "test_a_lie_with_all_that_follows_from_it_fails"
LEAF = "test_any_leaf_of_the_statement_that_is_changed_fails"


@caught_by("test_verify.py", f"{LIE}[half of the rounds are charged]", EVIDENCE, guards="verify")
def rounds_that_nobody_charges():
    """A release may charge fewer rounds than its recipe asks for."""
    from sottovoce_evidence import verify

    verify.charge_faults = lambda evidence: iter(())


@caught_by("test_verify.py", f"{LEAF}[turns]", EVIDENCE, guards="verify")
def a_statement_that_is_believed():
    """A release may state any relation, rate, sensitivity and noise beside the charges of its ledger."""
    from sottovoce_evidence.verify import _Found

    _Found._compared = lambda found, stated, due: iter(())


@caught_by("test_verify.py", "test_files_of_others_and_hostile_files_are_refused", EVIDENCE, guards="verify")
def a_link_that_counts_for_nothing():
    """What is no plain file is left out of the folder's list, and opened later."""
    from sottovoce_evidence import verify

    real = verify.signature.check_folder
    verify.signature.check_folder = lambda *given: dataclasses.replace(real(*given), odd=(), file_faults=())


# --- noise, seen from outside ----------------------------------------------------------------------------------------

OUTSIDE = "black_box/test_noise_is_what_is_charged.py"
STOPPED = "test_models_of_a_run_that_was_stopped_twice_differ_by_the_noise_that_is_charged"
SILOS = "test_models_of_silos_that_add_noise_differ_by_what_is_charged_or_more"


def _scale_all_noise(mechanism: ModuleType, by: float) -> None:
    """Noise is drawn at another scale, whatever is said of it."""
    gaussian = mechanism.rounded_gaussian
    mechanism.rounded_gaussian = lambda key, size, std, *more: gaussian(key, size, by * std, *more)


@caught_by(OUTSIDE, f"{STOPPED}[independent]", guards="noise")
def nearly_all_of_the_noise():
    """Noise of 0.95 of its scale."""
    from sottovoce.privacy import mechanism

    _scale_all_noise(mechanism, 0.95)


@caught_by(OUTSIDE, f"{STOPPED}[independent]", guards="noise")
def half_the_noise_said_too():
    """Noise at half its scale, and the statement says so, beside the ε of all of it."""
    from sottovoce.privacy.mechanism import Mechanism

    real = Mechanism.noise_std
    Mechanism.noise_std = lambda *args: (real(*args)[0] / 2, real(*args)[1])


@caught_by(OUTSIDE, f"{STOPPED}[independent]", guards="keys")
def noise_of_the_first_rounds_after_a_resume():
    """The key of the noise follows from how many rounds a process has done."""
    from sottovoce.runs.secrets import Secrets

    real, done = Secrets.noise_key, [0]

    def noise_key(self, number):
        done[0] += 1
        return real(Secrets(self.salt, self.salt, is_seeded=True), done[0])

    Secrets.noise_key = noise_key
    _at_every_resume(lambda: done.__setitem__(0, 0))


@caught_by(OUTSIDE, f"{STOPPED}[banded]", guards="noise")
def independent_noise_charged_as_banded():
    """A stream forgets all that it drew: a banded matrix is charged, and the noise of rounds is independent."""
    import jax.numpy as jnp

    from sottovoce.privacy.noise_stream import BandedStream

    real = BandedStream.next
    BandedStream.next = lambda self, state, *rest: real(self, jnp.zeros_like(state), *rest)


@caught_by(OUTSIDE, f"{STOPPED}[banded]", guards="checkpoint")
def a_stream_that_forgets_at_resume():
    """The state of the noise is zero after a resume: noise that was to be taken off again stays."""
    from sottovoce.training.server import ServerState

    ServerState.with_noise = lambda self, arrays: self


@caught_by(OUTSIDE, "test_the_noise_of_one_run_tells_nothing_of_that_of_another", guards="keys")
def noise_that_follows_from_the_round_alone():
    """The noise of a round is the same in every run."""
    from hashlib import sha256

    from sottovoce.runs.secrets import Secrets

    Secrets.noise_key = lambda self, number: sha256(str(number).encode()).digest()


@caught_by(OUTSIDE, f"{SILOS}[0]", guards="noise")
def half_the_noise_of_silos():
    """Silos draw half of the standard deviation that is charged."""
    from sottovoce.federation import device

    real = device.rounded_gaussian
    device.rounded_gaussian = lambda key, size, std: real(key, size, std / 2)


@caught_by(OUTSIDE, f"{SILOS}[0]", guards="noise")
def silos_that_draw_once():
    """Every silo sends the noise of its first round in all rounds."""
    from sottovoce.federation import device

    real, own = device.rounded_gaussian, []

    def rounded_gaussian(key, size, std):
        own.append(key)
        return real(own[0], size, std)

    device.rounded_gaussian = rounded_gaussian
