import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose

from matfree_hier.links import NAMES, FittedLink, Link, link


@pytest.mark.parametrize("name", NAMES)
def test_named_links_are_centred_and_not_even_under_the_normal_law(name):
    z, w = np.polynomial.hermite_e.hermegauss(180)
    w = w / w.sum()
    g = link(name)
    assert abs(w @ g(z)) < 2e-3  # the relu's corner limits the quadrature
    assert abs(w @ g.derivative(z)) > 0.3


@pytest.mark.parametrize("name", NAMES)
def test_the_derivative_of_a_named_link_is_its_slope(name):
    z = np.linspace(-3.0, 3.0, 50)
    by_differences = Link(name, link(name).function).derivative(z)
    assert_allclose(link(name).derivative(z), by_differences, atol=2e-9)


def test_a_callable_brings_its_own_derivative_or_gets_differences():
    def cube(h):
        return h**3

    assert link(cube).name == "cube"
    assert_allclose(link(cube).derivative([-2.0, 0.5]), [12.0, 0.75], rtol=1e-8)
    cube.derivative = lambda h: -7.0 * np.ones_like(h)
    assert_allclose(link(cube).derivative([-2.0, 0.5]), [-7.0, -7.0])


def test_a_link_given_as_a_link_is_returned_as_it_is():
    g = link("tanh")
    assert link(g) is g
    assert link(None) is link("identity")


@pytest.mark.parametrize("name", NAMES)
def test_links_pickle(name):
    assert pickle.loads(pickle.dumps(link(name))) is link(name)
    fitted = FittedLink(np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, 0.0, 2.0, 2.0]))
    assert np.array_equal(pickle.loads(pickle.dumps(fitted))([0.5, 9.0]), fitted([0.5, 9.0]))
    assert pickle.loads(pickle.dumps(link(np.cos)))(0.0) == 1.0


def test_an_unknown_link_is_refused_with_the_names():
    with pytest.raises(ValueError, match=r"`link` must be one of identity, .*, got 'sinh'\."):
        link("sinh")
    with pytest.raises(TypeError, match=r"`link` must be a name or a callable, got int\."):
        link(3)


def test_a_callable_that_changes_the_shape_is_refused():
    with pytest.raises(ValueError, match=r"must return an array of its input's shape \(3,\), got \(\)"):
        link(np.sum)(np.ones(3))
