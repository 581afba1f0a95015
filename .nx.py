import sys, tempfile, time
from pathlib import Path
import holdfast as hf
from benchmarks.nexmark.events import write_events
from benchmarks.nexmark.expected import difference
from benchmarks.nexmark.queries import QUERIES, Events
from benchmarks.nexmark.sql import SQL_QUERIES, built
from holdfast.testing import start
folder=Path(tempfile.mkdtemp())/"e"; write_events(folder,20000,seed=1,events_per_file=8000)
names=sys.argv[1:] or list(QUERIES)
for n in names:
    for form in ("api","sql"):
        try:
            sink=hf.MemorySink(); job=hf.Job(None,name=n,storage=f"memory://{n}{form}",parallelism=2,max_rows_per_batch=9000)
            s=QUERIES[n].build(Events(job,str(folder))) if form=="api" else built(n,job,Events(job,str(folder)))
            s.write(sink); start(job,hf.available_now(drain=True)).awaitTermination()
            print(n,form,difference(n,sink.table(),folder,QUERIES[n].keys) or f"equal {sink.table().num_rows}",flush=True)
        except Exception as e: print(n,form,type(e).__name__,str(e)[:400],flush=True)
