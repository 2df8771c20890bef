import pickle

import pytest

from matfree_hier.status import InputError, NotConverged, RunFileError, Status


def test_only_a_run_that_reached_its_goal_is_ok():
    assert [s.name for s in Status if s.ok] == ["CONVERGED", "OUTLIERS_RESOLVED", "SETTLED", "MAX_STEPS"]


def test_every_status_is_a_sentence_of_its_own():
    sentences = [s.value for s in Status]
    assert len(set(sentences)) == len(Status) == 9
    assert all(s[0].isupper() and s.endswith(".") and "  " not in s for s in sentences)
    assert str(Status.MAX_PASSES) == Status.MAX_PASSES.value


@pytest.mark.parametrize("status", [s for s in Status if not s.ok])
def test_a_failed_status_names_an_argument_to_change(status):
    assert "`" in status.value


def test_not_converged_carries_the_partial_result_through_pickling():
    error = NotConverged("The run stopped early.", result={"passes": 7.5})
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "The run stopped early."
    assert copy.result == {"passes": 7.5}


def test_errors_are_of_the_built_in_kinds_callers_catch():
    assert issubclass(NotConverged, RuntimeError)
    assert issubclass(RunFileError, RuntimeError)
    assert issubclass(InputError, ValueError)
