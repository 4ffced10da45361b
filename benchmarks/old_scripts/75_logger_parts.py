# The parts of the logger: formats, levels, a configuration for a while, measured functions.
import io
import os
import time

from stable_baselines import PPO2, logger
from stable_baselines.logger import (
    CSVOutputFormat, HumanOutputFormat, JSONOutputFormat, KVWriter, Logger, ProfileKV, ScopedConfigure, SeqWriter,
    TensorBoardOutputFormat, make_output_format, profile, read_csv, read_json)

assert logger.DEBUG < logger.INFO < logger.WARN < logger.ERROR < logger.DISABLED


class Memory(KVWriter, SeqWriter):
    """Keeps what it is told."""

    def __init__(self):
        self.tables, self.lines = [], []

    def writekvs(self, kvs):
        self.tables.append(dict(kvs))

    def writeseq(self, seq):
        self.lines.append(' '.join(seq))

    def close(self):
        self.closed = True


memory, text = Memory(), io.StringIO()
own = Logger(folder=None, output_formats=[memory, HumanOutputFormat(text)])
own.logkv('b', 2)
own.logkv_mean('a', 1)
own.logkv_mean('a', 2)
own.dumpkvs()
own.log('said', 3)
own.log('not said', level=logger.DEBUG)
own.set_level(logger.DEBUG)
own.log('said now', level=logger.DEBUG)
assert memory.tables == [{'a': 1.5, 'b': 2}] and memory.lines == ['said 3', 'said now']
assert text.getvalue().index('| a') < text.getvalue().index('| b') and 'said now' in text.getvalue()
own.close()
assert memory.closed and own.get_dir() is None

before = Logger.CURRENT
with ScopedConfigure(folder='scoped', format_strs=['csv', 'json', 'log']):
    assert Logger.CURRENT is not before and os.path.basename(logger.get_dir()) == 'scoped'
    assert logger.get_level() == logger.INFO
    logger.set_level(logger.WARN)
    logger.info('too quiet')
    logger.debug('too quiet')
    logger.error('loud')
    logger.logkvs({'x': 1, 'y': 2.5})
    with ProfileKV('block'):
        time.sleep(0.01)

    @profile('function')
    def double(n):
        return 2 * n

    assert double(4) == 8
    assert logger.getkvs()['wait_block'] >= 0.01 and logger.getkvs()['wait_function'] >= 0
    logger.dumpkvs()
    logger.set_level(logger.INFO)
    # a model's table goes there, too
    PPO2('MlpPolicy', 'CartPole-v1', n_steps=16, verbose=1).learn(16)
assert Logger.CURRENT is before
table = read_csv('scoped/progress.csv')
assert table['x'].values[0] == 1 and table['y'].values[0] == 2.5 and table['n_updates'].values[1] == 1
assert read_json('scoped/progress.json')['total_timesteps'].values[1] == 16
with open('scoped/log.txt') as file:
    lines = file.read()
assert 'loud' in lines and 'too quiet' not in lines and '| explained_variance' in lines

# a disabled logger writes nothing
own = Logger(None, [memory])
own.set_level(logger.DISABLED)
own.logkv('c', 1)
own.dumpkvs()
assert len(memory.tables) == 1

os.makedirs('formats')
events = TensorBoardOutputFormat('formats/tb')
events.writekvs({'x': 1, 'y': 'text'})
events.close()
assert any('tfevents' in name for name in os.listdir('formats/tb'))
for name, kind in (('csv', CSVOutputFormat), ('json', JSONOutputFormat), ('log', HumanOutputFormat)):
    output = make_output_format(name, 'formats', '_two')
    assert isinstance(output, kind)
    output.writekvs({'x': 3})
    output.close()
assert sorted(os.listdir('formats')) == ['log_two.txt', 'progress_two.csv', 'progress_two.json', 'tb']
assert read_csv('formats/progress_two.csv')['x'].values.tolist() == [3]
try:
    make_output_format('carrier pigeon', 'formats')
except ValueError:
    pass
else:
    raise AssertionError('accepted an unknown format')
