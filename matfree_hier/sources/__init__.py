"""Samples from arrays, data frames, files or a seeded teacher, read in chunks.

`open_source` takes what a user has and returns a `SampleSource`; everything above reads samples through
`SampleSource.chunks` only, so that memory does not grow with their number.
"""

from matfree_hier.sources.base import SampleSource as SampleSource
from matfree_hier.sources.chunks import Chunk as Chunk
from matfree_hier.sources.opening import open_source as open_source
from matfree_hier.sources.teacher import TeacherSource as TeacherSource
