import argparse, sys, time
from search import Search
import torch
p=argparse.ArgumentParser(); p.add_argument("--minutes",type=float,default=5); p.add_argument("--seed",type=int,default=0); p.add_argument("--case",type=int)
o=p.parse_args()
torch.set_num_threads(1)
s=Search(); n=o.case or 0; start=time.time()
seen={}
import traceback
while time.time()-start<60*o.minutes:
    try:
        found=list(s.run(o.seed,n))
    except Exception:
        print(n); traceback.print_exc(); found=[]
    for t in found:
        key=t[:60]
        seen[key]=seen.get(key,0)+1
        if seen[key]<=1: print(f"\n--- {time.time()-start:.1f}s seed {o.seed} case {n}\n{t}",flush=True)
    n+=1
    if o.case is not None: break
print(n, "cases", s.compared.total(), s.with_gradient.total(), "unstable", s.unstable.total(), "failed", s.failed, f"{time.time()-start:.0f}s")
