from tests.annotate.browser import browser as browser  # a fixture
