"""Stand-in for IPython: a CPU run imports it and never calls it."""

from kit_standin import fill

fill(__name__)
